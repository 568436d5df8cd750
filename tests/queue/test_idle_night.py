"""A night on two cards of a stand-in driver: a sweep of twelve that gives way, a colleague's runs,
a stranger's processes, and a supervisor that is killed while it makes room."""

# ruff: noqa: F811  fixtures of others

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gpu_engine.common import paths
from gpu_engine.devices import leases
from gpu_engine.devices.discover import discover
from gpu_engine.queue import serve
from gpu_engine.queue.turns import When
from gpu_engine.spec.read import from_dict
from gpu_engine.sweep import group
from gpu_engine.sweep.grid import members, parse

from ..conftest import wait_for
from ..devices.conftest import as_this_machine, standin, standin_library  # noqa: F401
from ..devices.leases.conftest import _processes, alice, box, place  # noqa: F401
from .kit import over, state
from .test_gpus import gpus  # noqa: F401

SCRIPT = '''
import os, pathlib, signal, sys, time
lr, folder = float(sys.argv[1]), pathlib.Path(sys.argv[2])
kept, card = folder / "kept", os.environ["CUDA_VISIBLE_DEVICES"]
step, value = map(float, kept.read_text().split()) if kept.exists() else (0, 1.0)
def save(*_):
    kept.write_text(f"{step:.0f} {value!r}")
    sys.exit(130)
signal.signal(signal.SIGINT, save)
with open(f"card-{card}", "a") as log:
    log.write(f"{folder.name} {time.time()} begins\\n")
while step < 120:
    time.sleep(0.25)
    step, value = step + 1, value * (1 - lr) + 1e-3 * step
    print(f"loss: {value!r}", flush=True)
(folder / "end").write_text(repr(value))
'''


def by_hand(lr):
    value = 1.0
    for step in range(120):
        value = value * (1 - lr) + 1e-3 * step
    return value


@pytest.mark.timeout(900)
def test_twelve_members_lose_nothing_and_no_card_is_held_twice(gpus, box, alice, line):
    gpus.set("count 2", "gpu * util 0")
    keys, at = [leases.key(d) for d in discover().devices], paths.leases_folder()
    Path("train.py").write_text(SCRIPT)
    rates = [round(0.01 * n, 2) for n in range(1, 13)]
    spec = from_dict({
        "name": "night", "devices": {"pick": 1}, "run": {
            "give_way": True, "give_way_back": 1.0, "give_way_after": 1.0, "metrics": "auto"},
        "task": {"command": [sys.executable, "train.py", "{lr}", "{run.dir}"]}})
    made = members(spec, [parse("train.lr=" + ",".join(map(str, rates)))], 1)
    sweep = group.submit(made, When(), "night", None, ())
    twice, over_now, chance = [], threading.Event(), random.Random(7)

    def watch():
        while not over_now.wait(0.05):
            twice.extend(str(first) for first in leases.holders(at).values() if first.others)

    def on(card):
        return getattr(leases.holders(at).get(keys[card]), "run", None)

    def rooms(run):
        return sum(a.outcome == "made room" for a in run.state().attempts)

    def by_a_stranger(run, card):
        with subprocess.Popen(["sleep", "600"]) as stranger:
            gpus.set("count 2", "gpu * util 0",
                     f"gpu {card} proc {stranger.pid} 2000000000 compute 50")
            wait_for(lambda: rooms(run) or not run.state().live)
            time.sleep(chance.uniform(0.0, 2.0))
            stranger.kill()
        gpus.set("count 2", "gpu * util 0")

    def by_alice(run, card, *, kill=False):
        alice.do(f"hers = make(box.line, {{'run': '3f2a', 'queue': '/hers', "
                 f"'ids': [{keys[card]!r}]}})")
        if kill:
            wait_for(lambda: state(run) == "stopping")
            os.kill(run.state().pid, signal.SIGKILL)
        wait_for(lambda: on(card) != run.id)
        alice.do(f"card = make(box.claims, {{'run': '3f2a', 'devices': [{{'key': "
                 f"{keys[card]!r}}}]}}); hers.close()")
        time.sleep(chance.uniform(0.5, 2.0))
        alice.do("card.close()")
        serve.ensure()

    watcher = threading.Thread(target=watch)
    watcher.start()
    ways = [by_alice, by_a_stranger] * 3
    while ways:
        time.sleep(chance.uniform(1.0, 4.0))
        card = chance.randrange(2)
        run = next((r for r in sweep.runs if r.id == on(card)), None)
        if run is None or state(run) != "running" or run.state().attempt > 1 \
                or time.time() - run.state().began > 8:
            continue
        way = ways.pop()
        way(run, card, **({"kill": True} if len(ways) == 2 else {}))
    over(*sweep.runs)
    over_now.set()
    watcher.join()
    assert {state(run) for run in sweep.runs} == {"completed"}
    assert sum(map(rooms, sweep.runs)) >= 6
    assert twice == []
    for run, lr in zip(sweep.runs, rates, strict=True):
        assert float((run.path / "end").read_text()) == by_hand(lr)
