"""Hosts of the person's own hosts.toml that answer hostilely: what is wrong with them is told, in
bounded time, memory and disk, and nothing outside of the run's own files is written."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpu_engine.remote.reach.watcher import Watcher
from gpu_engine.remote.run import link, parts
from gpu_engine.runs import trust
from gpu_engine.runs.folder import Run, all_runs

from ..conftest import over, slots, wait_for
from ..panel.panel_kit import panel, screen_text, until
from ..remote.reach.test_protocol import RECORDED
from . import hostile_host
from .hostile_host import CHECKPOINTS, FILES, FLOOD, OPENINGS, REMOVALS, RUNS
from .hostile_runs import GOOD, STEP, World, change, good, on_hosts, read, state_of
from .watching import OBEYED

PROGRAM = str(Path(hostile_host.__file__))
GIB = 1 << 30


@pytest.fixture
def watching(world, watch):
    """It may start what reaches the hosts, and what holds a run on them together."""
    found = watch()
    found.let = (PROGRAM, "gpu_engine.remote.run")
    found.memory = 8 * GIB
    yield found
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if str(world.root) in " ".join(child.cmdline()):
                child.kill()
    assert not found.problems, "\n".join(dict.fromkeys(found.problems))


def hosts(world: World, *hows: str) -> dict[str, str]:
    """Have hosts.toml name a host for each. Returns the names."""
    names = {f"h{number}": how for number, how in enumerate(hows)}
    answers = world.root / "answers.json"
    answers.write_text(json.dumps(_answers()))
    (world.root / "home" / "hosts.toml").write_text("".join(
        f"[hosts.{name}]\nvia = {json.dumps([sys.executable, '-S', PROGRAM, str(answers), how])}\n"
        for name, how in names.items()))
    return names


def _answers() -> dict[str, Any]:
    """What a good host answers: as it was recorded, of one slot."""
    found = dict(RECORDED)
    machine, look = found["devices"]
    machine["inventory"]["devices"] = machine["inventory"]["devices"][:1]
    look["snapshot"]["samples"] = look["snapshot"]["samples"][:1]
    del found["follow"]
    return found | {"state": state_of("toy", "completed") | {"attempt": 1, "cause": None}}


def on(name: str, world: World) -> Path:
    """A finished run that was started here, whose first rank was on the host `name`; its newest
    checkpoint is here too."""
    path = world.runs / "77aa"
    good(path, world)
    on_hosts(path)
    for host in ("a", "b"):
        (path / f"hosts/{host}.json").rename(path / f"hosts/{name}.json" if host == "a" else
                                             path / "hosts/left.json")
    (path / "hosts/left.json").unlink()
    (path / "hosts/former/c.json").unlink()
    change(path / f"hosts/{name}.json", host=name, state="completed")
    change(path / "state.json", state="completed")
    for file, data in FILES.items():
        (path / STEP / file).write_bytes(data)
    trust.note_started(path)
    return path


def test_a_good_one(world, watching):
    """What is hostile below differs from this."""
    name, = hosts(world, "good")
    assert "ready" in watching.call("hosts", "check")
    watching.call("run", "--detach", "--set", f"devices.hosts={name}:cpu:0", "--", "true")
    run = next(run for run in all_runs() if run.id != GOOD)
    over(run)
    assert run.state().state == "completed", run.state()
    path = on(name, world)
    shutil.rmtree(path / STEP)
    assert f"scp -r {name}:" in watching.call("export", str(path), str(world.root / "out" / "w.pt"))
    assert "77aa on h0" in watching.call("runs", "rm", "--yes", "77aa")


def test_asked_who_they_are(world, watching):
    names = hosts(world, *OPENINGS)
    said = watching.call("hosts", "check")
    assert all(name in said for name in names), said
    told = watching.call("hosts", "check", "--json")
    assert len(told) < 4 << 20
    assert OBEYED.search(watching.call("hosts")) is None
    for name in list(names)[::4]:
        watching.call("run", "--detach", "--set", f"devices.hosts={name}:cpu:0", "--", "true")


async def test_their_devices_in_the_panel(world, watching):
    names = hosts(world, *(how for how in OPENINGS if "device" in how or "escapes" in how))
    watcher = Watcher(0.2)
    try:
        async with panel(slots(1), hosts=watcher, size=(140, 60)) as (pilot, _):
            await until(pilot, lambda: {s.host.name for s in watcher.seen} >= set(names) and all(
                s.state != "asking" for s in watcher.seen), 60)
            for key in ("end", "home", *["pagedown"] * 6):
                await pilot.press(key)
                watching.judge_text("the devices", screen_text(pilot.app).replace("\n", " "))
                assert "Something went wrong" not in screen_text(pilot.app)
    finally:
        watcher.close()


@pytest.mark.parametrize("how", RUNS)
def test_a_run_on_one(how, world, watching):
    name, = hosts(world, how)
    watching.call("run", "--detach", "--set", f"devices.hosts={name}:cpu:0", "--", "true")
    run = next(run for run in all_runs() if run.id != GOOD)
    part = run.path / f"hosts/{name}.json"
    wait_for(lambda: not run.state().live or read(part)["problem"])
    out = str(world.root / "out")
    assert "damaged" not in watching.call("runs")
    for words in (("show", run.id), ("show", "--json", run.id), ("logs", run.id),
                  ("logs", "--supervisor", run.id), ("report", "-o", f"{out}/r.html", run.id),
                  ("export", "--to", "csv", "-o", f"{out}/r.csv", run.id),
                  ("stacks", "--wait", "0", run.id), ("stop", "--no-wait", run.id),
                  ("stop", "--no-wait", "--now", run.id)):
        watching.call(*words)
    # The run may go on: its own state is written beside the old one, and then renamed.
    names = {str(p.relative_to(run.path)) for p in run.path.rglob("*") if p.is_file()
             and not re.fullmatch(r"\.state\.json\.\d+\.[0-9a-f]+\.tmp", p.name)}
    assert names <= {"spec.toml", "plan.json", "state.json", "lock", "supervisor.log",
                     "digest.json", "environment.json", "notify.log", "ranks/00000.jsonl",
                     "ranks/00000.log", "node0.log",
                     *(f"hosts/{name}.{e}" for e in ("json", "log", "devices.jsonl"))}
    assert run.size() < 4 << 20
    _end(run)
    watching.call("runs", "rm", "--yes", "--here", run.id)


def _end(run: Run):
    """End the process here: what the host says of the run may never end it."""
    state = run.state()
    if state.live and state.pid is not None and trust.belongs(state.pid, run.path):
        os.kill(state.pid, signal.SIGKILL)
        wait_for(lambda: not run.supervised())
        change(run.path / "state.json", state="failed")


@pytest.mark.parametrize("how", list(CHECKPOINTS))
def test_weights_of_one(how, world, watching):
    """They are asked which, and nothing of theirs is loaded or written."""
    name, = hosts(world, how)
    path = on(name, world)
    for which in ("newest", "20"):
        watching.call("export", "--from", which, str(path), str(world.root / "out" / "w.pt"))
    shutil.rmtree(path / STEP)
    watching.call("export", str(path), str(world.root / "out" / "w.pt"))
    assert not list((path / "checkpoints").iterdir())


@pytest.mark.parametrize("how", [*REMOVALS, "ends with escapes"])
def test_removing_from_one(how, world, watching):
    name, = hosts(world, how)
    path = on(name, world)
    watching.call("runs", "rm", "--yes", "77aa")
    assert path.exists() is (how != "it was the root")
    watching.call("runs", "prune", "--yes", "--keep", "1")


def test_no_more_than_may_be_is_mirrored(world, watching, monkeypatch):
    monkeypatch.setattr(link, "MOST_EVENTS", 4 << 20)
    how, = FLOOD
    name, = hosts(world, how)
    path = on(name, world)
    shutil.rmtree(path / "ranks")
    (path / "ranks").mkdir()
    part, = parts.read(path)
    way = link.Link(path, part, 1 << 20, threading.Event())
    way.start()
    wait_for(lambda: "more than 4,194,304 bytes" in (way.part.problem or ""))
    assert (path / "ranks/00000.jsonl").stat().st_size <= 4 << 20
    way.give_up()
    wait_for(lambda: way not in threading.enumerate())
