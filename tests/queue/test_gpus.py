"""Runs that wait for GPUs of a stand-in driver."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace

import pytest

from gpu_engine.common import paths
from gpu_engine.devices import leases
from gpu_engine.devices.discover import discover
from gpu_engine.queue import serve, submit, wait
from gpu_engine.queue.turns import When
from gpu_engine.runs import attempts
from gpu_engine.spec.read import from_dict
from gpu_engine.supervisor import start

from ..conftest import wait_for
from ..devices.conftest import as_this_machine, standin, standin_library  # noqa: F401
from .kit import over, queue, reason, state

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
        wait_for(lambda: reason(run) == "waits for any 2 GPUs with 20.0 GiB free: 1 of 3 now")
    over(run)
    assert state(run) == "completed", reason(run)
    assert run.output(0).read_text() == "0,1\n"
    assert from_dict(attempts.read_spec(run)).devices.ids == ["0", "1"]


def test_a_gpu_on_which_somebody_computes_is_waited_for_and_then_has_to_stay_free(gpus, line):
    gpus.set("count 3", "gpu * util 0", f"gpu 0 proc {os.getpid()} 2000000000 compute 5")
    run = queue(*SHOW, devices={"ids": ["0"]})
    wait_for(lambda: reason(run).startswith("waits for GPU 0, which is not free: "))
    gpus.set("count 3", "gpu * util 0")
    over(run)
    assert state(run) == "completed", reason(run)


def test_who_comes_onto_a_device_after_its_turn_has_come_makes_it_wait_again(gpus, here,
                                                                             monkeypatch):
    """A process of somebody else, which no lease shows. It forgets no earlier attempt."""
    first = queue(*SHOW, devices={"ids": ["0"]})
    over(first)
    [before] = first.state().attempts
    spec = from_dict(attempts.read_spec(first))
    submit.submit(replace(spec, run=replace(spec.run, grace=7.0)), When(), again=first, begin=False)
    real, held = start.blocked, []

    def comes(*given, **more):
        held.append(list(leases.holders(paths.leases_folder())))
        gpus.set("count 3", "gpu * util 0", *(
            [f"gpu 0 proc {os.getpid()} 2000000000 compute 5"] if len(held) == 1 else []))
        return real(*given, **more)

    monkeypatch.setattr(start, "blocked", comes)
    monkeypatch.setattr(start, "PATIENCE_AGAIN", 0.2)
    monkeypatch.setattr(wait, "PAUSES", (0.1,))
    tried = []
    monkeypatch.setattr(wait.Waiter, "_try_later", lambda self, why, do=wait.Waiter._try_later: (
        do(self, why), tried.append((why, first.state(), gpus.set("count 3", "gpu * util 0")))))
    waiter = wait.Waiter(first)
    with waiter.take_turn():
        assert held == [[discover().devices[0].uuid]] * 2
    [(why, said, _)] = tried
    assert why == "for devices that others took meanwhile"
    assert (said.state, said.attempt, said.attempts) == ("queued", 2, (before,))
    assert said.changed == ("run.grace=7.0",)
    assert serve.line() == []


def test_a_run_that_shares_starts_on_gpus_that_others_hold(gpus, line):
    with hold(0):
        run = queue(*SHOW, devices={"ids": ["0"], "share": True})
        over(run)
        assert state(run) == "completed", reason(run)
        assert run.output(0).read_text() == "0\n"


def test_a_device_that_the_environment_hides_is_not_taken(gpus, line, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    run = queue(*SHOW, devices={"pick": 1})
    over(run)
    assert state(run) == "completed", reason(run)
    assert run.output(0).read_text() == "2\n"
