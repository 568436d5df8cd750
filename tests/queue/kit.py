"""Runs that wait, for tests."""

from __future__ import annotations

from gpu_engine.common import paths
from gpu_engine.devices import leases
from gpu_engine.devices.discover import cpu_slots
from gpu_engine.queue import submit
from gpu_engine.queue.submit import When
from gpu_engine.queue.waiter import Waiter
from gpu_engine.runs.folder import Run
from gpu_engine.spec.read import from_dict

from ..conftest import wait_for


def spec(*command, slot=0, **more):
    """A run of `command` on one CPU slot; `more` replaces tables of the spec."""
    return from_dict({"name": "t", "task": {"command": list(command or ("true",))},
                      "devices": {"ids": [f"cpu:{slot}"]}} | more)


def queue(*command, when=None, slot=0, **more) -> Run:
    """Have such a run wait, without a waiter that would start it."""
    return submit.submit(spec(*command, slot=slot, **more), when or When(), begin=False)


def hold(slot=0):
    """Hold a CPU slot, as another run does."""
    device = cpu_slots().devices[slot]
    return leases.acquire(paths.leases_folder(), [device], "77aa", share=True)


def turn_until(line: Waiter, done):
    """Let the waiter do its turns until `done()`."""
    def once():
        line.turn()
        return done()

    return wait_for(once)


def state(run: Run) -> str:
    return run.state().state
