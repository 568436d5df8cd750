"""Find the devices of this machine."""

from __future__ import annotations

import os
from dataclasses import replace

from gpu_engine.devices.backends import registry
from gpu_engine.devices.records import Inventory

PATIENCE = 20.0
"""Seconds after which a driver that does not answer is given up."""


def discover(timeout: float = PATIENCE) -> Inventory:
    """Find the GPUs of the first vendor that has some here; without GPUs, CPU slots. Never raises.

    Drivers are called in another process (see `probe/`), so this returns within about `timeout`
    seconds even if a driver hangs. It blocks until then: a screen calls it from a thread. Waking
    NVIDIA GPUs without persistence mode takes 1 to 2 s each.
    """
    # Without a driver, variables that hide GPUs may be set all the same.
    names = registry.drivers() or [next(iter(registry.BACKENDS))]
    found: list[Inventory] = []
    for name in names:
        found.append(discover_of(name, timeout / len(names)))
        if found[-1].devices:
            return found[-1]
    slots, gpus = cpu_slots(), found[0]
    problems = filter(None, (i.problem for i in (*found, slots)))
    return replace(slots, problem="; ".join(problems) or None,
                   inherited_visible=gpus.inherited_visible,
                   visible_variable=gpus.visible_variable, hidden=gpus.hidden)


def discover_of(name: str, timeout: float = PATIENCE) -> Inventory:
    """Find the devices of one backend, a name in `registry.BACKENDS`. Never raises."""
    backend = registry.load(name)
    environ = {v: os.environ[v] for v in backend.variables if v in os.environ}
    if not backend.present():
        return backend.nothing(environ)
    if backend.asks_driver:
        from gpu_engine.devices.probe import client

        return client.discover(name, environ, timeout)
    return backend.discover(environ, timeout)


def cpu_slots() -> Inventory:
    """Find the CPU slots, even if there are GPUs. Never raises."""
    return discover_of("cpu")
