"""Which devices the variables of ROCm make visible. Pure.

The rules are those of ROCm's own code:

- ROCR_VISIBLE_DEVICES comes first (amd_filter_device.cpp). Entries are indices, or UUIDs that may
  be cut short as long as they are unambiguous ("GPU-a1"). The first entry that names no device, or
  one that was named before, ends the list. An empty value hides all.
- HIP_VISIBLE_DEVICES, or CUDA_VISIBLE_DEVICES if that is not set or empty, then chooses by the new
  numbers (rocclr's rocdevice.cpp).

On one point the person's intent counts, not the code: HIP ignores an empty list, but nobody writes
one to see all GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpu_engine.devices.backends import protocol
from gpu_engine.devices.records import Device

FIRST = "ROCR_VISIBLE_DEVICES"
LATER = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


def deciding(environ: Mapping[str, str]) -> str | None:
    """The variable to name to a person: the first that is set; None if none is."""
    return next((v for v in (FIRST, *LATER) if v in environ), None)


def hides_all(environ: Mapping[str, str]) -> bool:
    """Whether one of the variables hides every GPU on purpose."""
    return any(protocol.hides_all(environ.get(v)) for v in _that_count(environ))


def narrow(devices: Sequence[Device], environ: Mapping[str, str]) -> tuple[Device, ...]:
    """The devices that the variables make visible, in their order, with `visible_index` set."""
    found = tuple(devices)
    for variable in _that_count(environ):
        if variable in environ:
            found = _chosen(found, environ[variable])
    if deciding(environ) is None:
        return found
    return tuple(replace(d, visible_index=i) for i, d in enumerate(found))


def _that_count(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The variables that have a say."""
    hip = LATER[0] if environ.get(LATER[0]) else LATER[1]
    return (FIRST, hip if hip in environ else LATER[0])


def _chosen(devices: Sequence[Device], value: str) -> tuple[Device, ...]:
    chosen: list[Device] = []
    for entry in value.split(","):
        device = _named(devices, entry.strip())
        if device is None or device in chosen:
            break
        chosen.append(device)
    return tuple(chosen)


def _named(devices: Sequence[Device], entry: str) -> Device | None:
    if entry[:1] in ("g", "G"):
        start = entry.lower()
        if len(start) < 5:
            return None
        fits = [d for d in devices if (d.uuid or "").split("/")[0].lower().startswith(start)]
        return fits[0] if len(fits) == 1 else None
    try:
        index = int(entry)
    except ValueError:
        return None
    return devices[index] if 0 <= index < len(devices) else None
