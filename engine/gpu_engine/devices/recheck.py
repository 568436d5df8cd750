"""Read some devices again, right before a run starts on them.

This is for the supervisor, which may neither start threads nor wait for long: another process
(`probe/`) calls the driver, and every wait here has a time limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from gpu_engine.devices.backends import registry
from gpu_engine.devices.probe import client
from gpu_engine.devices.probe.messages import Broken, Discover, Found, Looked, Watch
from gpu_engine.devices.records import Device, Inventory, Sample

_STEP = 0.2
"""Seconds after which `asked_to_end` is checked again while waiting."""

_Reply = TypeVar("_Reply", Found, Looked)


class NoAnswer(Exception):
    """The driver can't be read or does not answer. The text is for people."""


class _Ended(Exception):
    """`asked_to_end` returned True."""


def readings(source: str, wanted: Sequence[Device], timeout: float,
             asked_to_end: Callable[[], bool] = lambda: False,
             interval: float = 0.5) -> Iterator[tuple[Sample, ...]]:
    """Yield samples of the devices `wanted`, in their order, every `interval` seconds.

    `source` is the name of their backend. They are first found again by their UUIDs; for one that
    is gone the sample says so. Ends when `asked_to_end()` is true. Raises `NoAnswer` if nothing
    comes for `timeout` seconds.
    """
    try:
        backend = registry.load(source)
    except ValueError as unknown:  # planned by another version
        raise NoAnswer(str(unknown)) from None
    if not backend.present():
        raise NoAnswer(backend.missing)
    try:
        probe = client.Probe()
    except OSError as error:
        raise NoAnswer(f"the process that reads the GPUs could not be started: {error}")
    try:
        # All its GPUs, without regard to CUDA_VISIBLE_DEVICES: the devices are chosen already.
        probe.send(Discover(source, {}, timeout / 2))
        found = _reply(probe, Found, timeout, asked_to_end).inventory
        there = [_same(device, found) for device in wanted]
        watched = tuple(dict.fromkeys(d for d in there if d is not None))
        gone = found.problem if not found.devices and found.problem else backend.gone
        if watched:
            probe.send(Watch(source, watched, interval, timeout / 2))
        while True:
            by_id: dict[str, Sample] = {}
            if watched:
                look = _reply(probe, Looked, timeout, asked_to_end)
                by_id = {s.device.id: s for s in look.samples}
            yield tuple(_seen(device, here, by_id) if here is not None
                        else Sample(device, problem=gone)
                        for device, here in zip(wanted, there, strict=True))
            if not watched:
                return
    except _Ended:
        return
    except client.Gone as gone_wrong:
        raise NoAnswer(str(gone_wrong))
    finally:
        probe.close()


def _reply(probe: client.Probe, kind: type[_Reply], timeout: float,
           asked_to_end: Callable[[], bool]) -> _Reply:
    """The next reply of this kind. Raises `_Ended`, `NoAnswer` and `client.Gone`."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if asked_to_end():
            raise _Ended
        reply = probe.receive(_STEP)
        if isinstance(reply, Broken):
            raise NoAnswer(reply.problem)
        if isinstance(reply, kind):
            return reply
    raise NoAnswer(f"the driver has not answered for {timeout:g} s (see dmesg)")


def _seen(device: Device, here: Device, by_id: Mapping[str, Sample]) -> Sample:
    """The sample of `device`, which is numbered as `here` now."""
    sample = replace(by_id[here.id], device=device)
    if not device.is_slice and here.index != device.index and not sample.problem:
        # Ranks get the number from the plan, and would start on the card that has it now.
        return replace(sample, problem="cards were added or removed since the run was planned, and "
                                       f"it is GPU {here.index} now")
    return sample


def _same(device: Device, found: Inventory) -> Device | None:
    """The device as it is numbered now. A lost one has no UUID and is recognised by its index."""
    for other in found.devices:
        if device.uuid is not None and device.uuid == other.uuid:
            return other
    for other in found.devices:
        if other.id == device.id and (device.uuid is None or other.uuid is None):
            return other
    return None
