"""Find the devices of this machine."""

from __future__ import annotations

import os
from dataclasses import replace

from gpu_engine.devices.backends import registry
from gpu_engine.devices.records import Inventory

PATIENCE = 20.0
"""Seconds after which a driver that does not answer is given up."""


def discover(timeout: float = PATIENCE) -> Inventory:
    """Find the GPUs of all vendors; without GPUs, CPU slots. Never raises.

    Drivers are called in another process (see `probe/`), so this returns within about `timeout`
    seconds even if a driver hangs. It blocks until then: a screen calls it from a thread. Waking
    NVIDIA GPUs without persistence mode takes 1 to 2 s each.
    """
    names = registry.drivers()
    # Without a driver, variables that hide GPUs may be set all the same.
    gpus = discover_of(names or next(iter(registry.BACKENDS)), timeout)
    if gpus.devices:
        return gpus
    slots = cpu_slots()
    return replace(slots, problem="; ".join(filter(None, (gpus.problem, slots.problem))) or None,
                   inherited_visible=gpus.inherited_visible,
                   visible_variable=gpus.visible_variable, hidden=gpus.hidden)


def discover_of(name: str, timeout: float = PATIENCE) -> Inventory:
    """Find the devices of one backend (a name in `registry.BACKENDS`), or of several with "+"
    between their names. Never raises."""
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
