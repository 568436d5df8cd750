"""Runs that wait, for tests."""

from __future__ import annotations

from gpu_engine.common import paths
from gpu_engine.devices import leases
from gpu_engine.devices.discover import cpu_slots
from gpu_engine.queue import submit
from gpu_engine.queue.turns import When
from gpu_engine.runs.folder import Run
from gpu_engine.spec.read import from_dict

from .. import conftest


def spec(*command, slot=0, **more):
    """A run of `command` on one CPU slot; `more` replaces tables of the spec."""
    return from_dict({"name": "t", "task": {"command": list(command or ("true",))},
                      "devices": {"ids": [f"cpu:{slot}"]}} | more)


def queue(*command, when=None, slot=0, begin=True, **more) -> Run:
    """Have such a run wait. Not `begin`: without a supervisor, as after a reboot."""
    return submit.submit(spec(*command, slot=slot, **more), when or When(), begin=begin)


def hold(slot=0):
    """Hold a CPU slot, as another run does."""
    device = cpu_slots().devices[slot]
    return leases.acquire(paths.leases_folder(), [device], "77aa", share=True)


def state(run: Run) -> str:
    return run.state().state


def reason(run: Run) -> str:
    return run.state().reason or ""


def over(*runs: Run) -> None:
    """Wait until all have ended, and their supervisors with them."""
    for run in runs:
        conftest.over(run)
