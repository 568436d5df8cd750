"""Runs that wait for GPUs of a stand-in driver."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace

import pytest

from gpu_engine.common import paths
from gpu_engine.devices import leases
from gpu_engine.devices.discover import discover
from gpu_engine.launching import launcher
from gpu_engine.queue import change, start, starts, submit
from gpu_engine.runs import attempts
from gpu_engine.spec.read import from_dict

from ..conftest import wait_for
from ..devices.conftest import as_this_machine, standin, standin_library  # noqa: F401
from .kit import queue, state, turn_until

SHOW = ("sh", "-c", "echo $CUDA_VISIBLE_DEVICES")


@pytest.fixture
def gpus(as_this_machine):  # noqa: F811
    """Three GPUs of 80 GiB, all free."""
    if shutil.which("cc") is None:
        pytest.skip("no compiler")
    machine = as_this_machine("count 3", "gpu * util 0")
    assert len(discover().devices) == 3
    return machine


def hold(*indices, share=False):
    devices = discover().devices
    return leases.acquire(paths.leases_folder(), [devices[i] for i in indices], "77aa",
                          share=share)


def test_any_gpus_once_enough_are_free_and_have_the_memory(gpus, line):
    with hold(1, 2):
        run = queue(*SHOW, devices={"pick": 2, "free_gib": 20.0},
                    parallel={"mode": "dp"})
        turn_until(line, lambda: "1 of 3 now" in (run.state().reason or ""))
        assert run.state().reason == "waits for any 2 GPUs with 20.0 GiB free: 1 of 3 now"
    turn_until(line, lambda: not run.state().live)
    assert state(run) == "completed", run.state().reason
    assert run.output(0).read_text() == "0,1\n"
    assert from_dict(attempts.read_spec(run)).devices.ids == ["0", "1"]


def test_who_is_quicker_between_the_decision_and_the_claim_makes_it_wait_again(
        gpus, line, monkeypatch):
    run = queue(*SHOW, devices={"ids": ["0"]})
    planned = launcher.prepare(from_dict(attempts.read_spec(run)))
    monkeypatch.setattr(start, "prepare", lambda spec, **more: planned)
    with hold(0):
        assert start.main(["", str(run.path), "0"]) == 0
        wait_for(lambda: not run.supervised())
        assert "waits again: GPU 0 is held by run 77aa" in (
            run.path / "supervisor.log").read_text()
        assert run.state().state == "queued"
        assert run.state().attempts == ()
        assert [w.run for w in change.line()] == [run]
        turn_until(line, lambda: "77aa" in run.state().reason)
    # A process of somebody else, which no lease shows: the supervisor finds it.
    gpus.set("count 3", "gpu * util 0", f"gpu 0 proc {os.getpid()} 2000000000 compute 5")
    start.main(["", str(run.path), "0"])
    wait_for(lambda: not run.supervised())
    assert state(run) == "queued"
    assert "no longer free" in (run.path / "supervisor.log").read_text()


def test_a_run_that_shares_starts_on_gpus_that_others_hold(gpus, line):
    with hold(0):
        run = queue(*SHOW, devices={"ids": ["0"], "share": True})
        turn_until(line, lambda: not run.state().live)
        assert state(run) == "completed", run.state().reason
        assert run.output(0).read_text() == "0\n"


def test_waiting_again_forgets_no_earlier_attempt(gpus, line, monkeypatch):
    run = queue(*SHOW, devices={"ids": ["0"]})
    turn_until(line, lambda: not run.state().live)
    [first] = run.state().attempts
    spec = from_dict(attempts.read_spec(run))
    planned = launcher.prepare(spec)
    changed = replace(spec, run=replace(spec.run, grace=7.0))
    submit.submit_again(run, changed, submit.When(), discover())
    monkeypatch.setattr(start, "prepare", lambda spec, **more: planned)
    gpus.set("count 3", "gpu * util 0", f"gpu 0 proc {os.getpid()} 2000000000 compute 5")
    start.main(["", str(run.path), "0"])
    wait_for(lambda: not run.supervised())
    assert "no longer free" in (run.path / "supervisor.log").read_text()
    said = run.state()
    assert (said.state, said.attempt, said.attempts) == ("queued", 2, (first,))
    assert said.changed == ("run.grace=7.0",)


def test_what_the_starter_finds_in_the_way_is_waited_for_and_said(gpus, line, monkeypatch):
    monkeypatch.setattr(starts, "PAUSES", (0.1,))
    run = queue(*SHOW, devices={"ids": ["0"]})
    with hold(0):
        monkeypatch.setattr("sys.stdout", out := Out())
        assert start.main(["", str(run.path), "0"]) == start.NOT_YET
        assert "GPU 0 is held by run 77aa" in out.text
    assert state(run) == "queued"


class Out:
    text = ""

    def write(self, text):
        self.text += text
