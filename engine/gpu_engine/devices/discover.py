"""Find the devices of this machine; and find some of them again right before a run starts on them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from gpu_engine.devices import probe
from gpu_engine.devices.backends import registry
from gpu_engine.devices.records import Device, Inventory, Sample

PATIENCE = 20.0
"""Seconds after which a driver that does not answer is given up."""
_SHARE = 0.75
"""The share of the time limit for finding devices that a single GPU may take."""
_STEP = 0.2
"""Seconds after which `asked_to_end` is checked again while waiting."""


class NoAnswer(Exception):
    """The driver can't be read or does not answer. The text is for people."""


def discover(timeout: float = PATIENCE) -> Inventory:
    """Find the GPUs of the first vendor that has some here; without GPUs, CPU slots. Never raises.

    Drivers are called in another process (see `probe`), so this returns within about `timeout`
    seconds even if a driver hangs. It blocks until then: a screen calls it from a thread. Waking
    NVIDIA GPUs without persistence mode takes 1 to 2 s each.
    """
    drivers = [name for name in registry.BACKENDS if registry.load(name).asks_driver]
    # Without a driver, variables that hide GPUs may be set all the same.
    names = [name for name in drivers if registry.load(name).present()] or drivers[:1]
    tried: list[Inventory] = []
    for name in names:
        tried.append(discover_of(name, timeout / len(names)))
        if tried[-1].devices:
            return tried[-1]
    slots, gpus = cpu_slots(), tried[0]
    problems = filter(None, (i.problem for i in (*tried, slots)))
    return replace(slots, problem="; ".join(problems) or None,
                   inherited_visible=gpus.inherited_visible,
                   visible_variable=gpus.visible_variable, hidden=gpus.hidden)


def discover_of(name: str, timeout: float = PATIENCE) -> Inventory:
    """Find the devices of one backend, a name in `registry.BACKENDS`. Never raises."""
    backend = registry.load(name)
    environ = {v: os.environ[v] for v in backend.variables if v in os.environ}
    if not backend.present():
        return backend.nothing(environ)
    if not backend.asks_driver:
        return backend.discover(environ, timeout)
    child: probe.Probe | None = None
    try:
        child = probe.acquire()
        child.send(probe.Discover(name, environ, _SHARE * timeout))
        reply = child.receive(timeout)
        problem = (f"the driver did not answer in {timeout:g} s (it may hang: see dmesg; its own "
                   "tools, such as nvidia-smi, may hang too)")
    except probe.Gone as gone:
        reply, problem = None, str(gone)
    if child is not None and isinstance(reply, Inventory):
        probe.put_back(child)
        return reply
    if child is not None:
        child.close()
    return backend.nothing(environ, problem)


def cpu_slots() -> Inventory:
    """Find the CPU slots, even if there are GPUs. Never raises."""
    return discover_of("cpu")


def readings(source: str, wanted: Sequence[Device], timeout: float,
             asked_to_end: Callable[[], bool] = lambda: False,
             interval: float = 0.5) -> Iterator[tuple[Sample, ...]]:
    """Yield samples of the devices `wanted`, in their order, every `interval` seconds. It is for
    the supervisor, which may neither start threads nor wait for long.

    `source` is the name of their backend. They are first found again by their UUIDs; for one that
    is gone the sample says so. Ends when `asked_to_end()` is true. Raises `NoAnswer` if nothing
    comes for `timeout` seconds.
    """
    try:
        backend = registry.load(source)
        if not backend.present():
            raise NoAnswer(backend.missing)
        child = probe.Probe()
    except (ValueError, probe.Gone) as error:  # ValueError: planned by another version
        raise NoAnswer(str(error)) from None

    def reply_to(request: probe.Request) -> Inventory | probe.Looked | None:
        """None if `asked_to_end`."""
        child.send(request)
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if asked_to_end():
                return None
            if (reply := child.receive(_STEP)) is not None:
                return reply
        raise NoAnswer(f"the driver has not answered for {timeout:g} s (see dmesg)")

    try:
        # All its GPUs, without regard to CUDA_VISIBLE_DEVICES: the devices are chosen already.
        found = reply_to(probe.Discover(source, {}, timeout / 2))
        if not isinstance(found, Inventory):
            return
        there = [_same(device, found) for device in wanted]
        gone = (not found.devices and found.problem) or backend.gone
        watched = tuple(dict.fromkeys(d for d in there if d is not None))
        by_id: dict[str, Sample] = {}
        if watched:
            child.send(probe.Watch(source, watched, timeout / 2))
        while True:
            if watched:
                look = reply_to(probe.Look())
                if not isinstance(look, probe.Looked):
                    return
                by_id = {s.device.id: s for s in look.samples}
            yield tuple(Sample(device, problem=gone) if here is None
                        else _seen(device, here, by_id[here.id])
                        for device, here in zip(wanted, there, strict=True))
            if not watched:
                return
            time.sleep(interval)
    except probe.Gone as lost:
        raise NoAnswer(str(lost)) from None
    finally:
        child.close()


def _seen(device: Device, here: Device, sample: Sample) -> Sample:
    """The sample of `device`, which is numbered as `here` now."""
    problem = sample.problem
    if not device.is_slice and here.index != device.index and not problem:
        # Ranks get the number from the plan, and would start on the card that has it now.
        problem = (f"cards were added or removed since the run was planned, and it is GPU "
                   f"{here.index} now")
    return replace(sample, device=device, problem=problem)


def _same(device: Device, inventory: Inventory) -> Device | None:
    """The device as it is numbered now. A lost one has no UUID and is recognised by its index."""
    for other in inventory.devices:
        if device.uuid is not None and device.uuid == other.uuid:
            return other
    return next((other for other in inventory.devices if other.id == device.id
                 and (device.uuid is None or other.uuid is None)), None)
