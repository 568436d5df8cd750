"""Look at some devices once more, right before something starts on them.

For a program that may neither start threads nor wait for long (the supervisor): the driver is
asked from another process (`probe`), and every wait has an end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from gpu_engine.devices.backends import registry
from gpu_engine.devices.probe import client as probe
from gpu_engine.devices.probe.messages import Broken, Discover, Found, Looked
from gpu_engine.devices.records import Device, Inventory, Sample

_STEP = 0.2
"""Seconds between two questions whether to go on waiting."""

_Reply = TypeVar("_Reply", Found, Looked)


class NoAnswer(Exception):
    """The driver can't be asked, or does not answer; the text says so for people."""


class _Ended(Exception):
    """The caller does not want to wait any more."""


def looks(
    source: str,
    wanted: Sequence[Device],
    timeout: float,
    asked_to_end: Callable[[], bool] = lambda: False,
    interval: float = 0.5,
) -> Iterator[tuple[Sample, ...]]:
    """Samples of `wanted`, in its order, each `interval` seconds for as long as they are taken.

    The devices, GPUs of the vendor whose backend is called `source`, are found anew, by UUID: one
    that is gone since has a sample that says so. Ends early once `asked_to_end`. Raises `NoAnswer`
    when nothing comes for `timeout` seconds.
    """
    try:
        backend = registry.load(source)
    except ValueError as unknown:  # planned by another version
        raise NoAnswer(str(unknown)) from None
    if not backend.present():
        raise NoAnswer(backend.missing)
    try:
        asked = probe.Probe()
    except OSError as error:
        raise NoAnswer(f"the process that reads the GPUs could not be started: {error}")
    try:
        # All its GPUs, whatever CUDA_VISIBLE_DEVICES says: what was chosen stands.
        asked.send(Discover(registry.BACKENDS[source], {}, timeout / 2))
        found = _reply(asked, Found, timeout, asked_to_end).inventory
        there = [_same(device, found) for device in wanted]
        watched = tuple(dict.fromkeys(d for d in there if d is not None))
        gone = found.problem if not found.devices and found.problem else backend.gone
        if watched:
            probe.watch(asked, source, watched, interval, patience=timeout / 2)
        while True:
            by_id: dict[str, Sample] = {}
            if watched:
                look = _reply(asked, Looked, timeout, asked_to_end)
                by_id = {s.device.id: s for s in look.samples}
            yield tuple(
                _seen(device, here, by_id) if here is not None else Sample(device, problem=gone)
                for device, here in zip(wanted, there, strict=True)
            )
            if not watched:
                return
    except _Ended:
        return
    except probe.Gone as gone_wrong:
        raise NoAnswer(str(gone_wrong))
    finally:
        asked.close()


def _reply(
    asked: probe.Probe, kind: type[_Reply], timeout: float, asked_to_end: Callable[[], bool]
) -> _Reply:
    """The next reply of this kind. Raises `_Ended`, `NoAnswer` and `probe.Gone`."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if asked_to_end():
            raise _Ended
        reply = asked.receive(_STEP)
        if isinstance(reply, Broken):
            raise NoAnswer(reply.problem)
        if isinstance(reply, kind):
            return reply
    raise NoAnswer(f"the driver has not answered for {timeout:g} s (see dmesg)")


def _seen(device: Device, here: Device, by_id: Mapping[str, Sample]) -> Sample:
    """The sample of a device, by the name it was asked for."""
    sample = replace(by_id[here.id], device=device)
    if not device.is_slice and here.index != device.index and not sample.problem:
        # Its number is what the ranks are told: they would start on the card that has it now.
        return replace(sample, problem=f"a card came or went, and it is GPU {here.index} now")
    return sample


def _same(device: Device, found: Inventory) -> Device | None:
    """The device as it is numbered now; a lost one has no UUID and is known by its index."""
    for other in found.devices:
        if device.uuid is not None and device.uuid == other.uuid:
            return other
    for other in found.devices:
        if other.id == device.id and (device.uuid is None or other.uuid is None):
            return other
    return None
