"""A run that is started at once says for whom its devices were meant."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace

import pytest

from gpu_engine.launching.launcher import prepare
from gpu_engine.launching.preflight import overtaken
from gpu_engine.runs import waiting
from gpu_engine.runs.create import create_run
from gpu_engine.runs.folder import Run, State
from gpu_engine.runs.waiting import Entry
from gpu_engine.spec.read import from_dict

from ..conftest import gpus
from ..plans import plan

GIB = 1 << 30
MACHINE = gpus(4)
PLAN = plan()


def waits(*ids: str, number: int = 1, **more) -> Run:
    """A run in the line, as `gpu-engine run --queue` makes it."""
    run, lock = create_run("toy", "", PLAN)
    os.close(lock)
    entry = {"submitted": time.mktime((2026, 11, 22, 10, 2, 0, 0, 0, -1)), "number": number,
             "host": socket.gethostname(), "count": 0 if ids else 1, **more}
    waiting.write(run.path, Entry(ids=tuple(MACHINE.devices[int(i)].uuid for i in ids), **entry))
    waiting.enter(run.path)
    return run


def on(*ids: str):
    return from_dict({"task": {"use": "gpu_engine.tasks.digits:Digits"},
                      "devices": {"ids": list(ids)}})


def test_the_first_of_those_who_wait_for_its_devices_is_named(home):
    assert overtaken(on("0"), MACHINE) is None
    waits("3", number=1)
    second, first = waits("1", "0", number=3), waits("0", number=2)
    said = overtaken(on("2", "0"), MACHINE)
    assert said.startswith(f"run {first.id} has been waiting for GPU 0 since ")
    assert "10:02: this run goes first;" in said
    waiting.write(second.path, replace(waiting.read(second.path), priority=1))
    waiting.enter(second.path)
    assert f"run {second.id} has been waiting for GPU 1, GPU 0 since" \
        in overtaken(on("1", "0"), MACHINE)
    waiting.leave(first.path)
    waiting.leave(second.path)
    assert overtaken(on("2", "0"), MACHINE) is None
    assert prepare(on("3"), inventory=MACHINE).plan.warnings[0].startswith("run ")
    assert prepare(on("3"), inventory=MACHINE, in_turn="3f2a").plan.warnings == ()


@pytest.mark.parametrize(("entry", "said"), [
    ({"count": 2}, "any 2 GPUs"), ({"free": 80 * GIB}, "any 1 GPU with 80.0 GiB free"),
    ({"within": (MACHINE.devices[1].uuid,)}, None),
    ({"within": (MACHINE.devices[0].uuid,)}, "any 1 GPU"), ({"cpu": True}, None),
    ({"share": True}, None),
    ({"host": "elsewhere"}, None), ({"begin": 4e9}, None), ({"begin": 1e9}, "any 1 GPU")])
def test_only_who_could_take_them_now_counts(home, entry, said):
    waits(**entry)
    found = overtaken(on("0"), MACHINE)
    assert found is None if said is None else f"waiting for {said} since" in found


def test_who_follows_another_run_counts_once_that_has_completed(home):
    other, lock = create_run("toy", "", PLAN)
    os.close(lock)
    other.write_state(State("failed", other.id, "toy", 1.0, ended=2.0))
    waits("0", after=other.id)
    assert overtaken(on("0"), MACHINE) is None
    other.write_state(State("completed", other.id, "toy", 1.0, ended=2.0))
    assert overtaken(on("0"), MACHINE) is not None
