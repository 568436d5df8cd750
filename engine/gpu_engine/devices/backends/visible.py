"""Which devices the variables of CUDA and of ROCm make visible. Pure.

CUDA's rules (CUDA C++ Programming Guide, environment variables; for odd values, the parsers of
nvitop and PyTorch show what the driver does):

- entries are indices or UUIDs, and the first entry decides which; a UUID may be cut short as long
  as it is unambiguous ("GPU-8932f9"), and a MIG slice is "MIG-…" or, with old drivers,
  "MIG-GPU-<uuid>/<gi>/<ci>";
- an index is read like C's strtoul: blanks before it and anything after it are ignored;
- the first entry that names no device ends the list; the entries before it stay visible;
- if an entry occurs twice, no device is visible;
- an empty value, or "-1", hides every GPU.

One of CUDA's rules is left out on purpose: a single process sees only the first of several MIG
slices, but each rank is a process with its own variable, so all slices in the list can be used.

ROCm's rules are those of its own code:

- ROCR_VISIBLE_DEVICES comes first (amd_filter_device.cpp), with indices or UUIDs. The first entry
  that names no device, or one that was named before, ends the list. An empty value hides all.
- HIP_VISIBLE_DEVICES, or CUDA_VISIBLE_DEVICES if that is not set or empty, then chooses by the new
  numbers (rocclr's rocdevice.cpp). HIP ignores an empty list, but nobody writes one to see all
  GPUs, so it hides all here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpu_engine.devices.records import Device

ROCR = "ROCR_VISIBLE_DEVICES"
HIP = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
_NONE = re.compile(r"\s*(-\d.*|none|void|nodevfiles|)\s*", re.IGNORECASE | re.DOTALL)


def hides_all(value: str | None) -> bool:
    """Whether the value of a variable that lists devices hides all of them on purpose. One that
    only names none, as "all" or a list in quotes, is a mistake."""
    return value is not None and _NONE.fullmatch(value) is not None


def cuda(devices: Sequence[Device], visible: str | None) -> tuple[Device, ...]:
    """The devices that the value `visible` of CUDA_VISIBLE_DEVICES makes visible, in its order,
    with `visible_index` set. None: the variable is not set.

    `devices`: all GPUs and MIG slices of the machine. As in CUDA, the index of a GPU in MIG mode
    stands for its first slice.
    """
    if visible is None:
        return tuple(devices)
    entries = [e.strip() for e in visible.split(",")]
    by_uuid = not re.match(r"[+-]?\d", entries[0])
    chosen: list[Device] = []
    for entry in entries:
        number = None if by_uuid else re.match(r"\+?(\d+)", entry)
        device = _of_uuid(devices, entry, ("GPU-", "MIG-")) if by_uuid else next(
            (d for d in devices if number and d.index == int(number[1])), None)
        if device is None:
            break
        if device in chosen:
            return ()
        chosen.append(device)
    return _numbered(chosen)


def unread(shown: Sequence[Device], visible: str | None) -> str | None:
    """What of the value CUDA passes over without a word, where it makes `shown` visible: "-3" of
    "0-3", "9,1" of "0,9,1" if there is no GPU 9. None: nothing. A list may be ended by -1."""
    if not visible or not shown:
        return None
    entries = [e.strip() for e in visible.split(",")]
    over = [e[n.end():] for e in entries[:len(shown)] if (n := re.match(r"\+?\d+", e))]
    rest = entries[len(shown):]
    return ",".join(filter(None, over + ([] if rest[:1] == ["-1"] else rest))) or None


def order_doubt(devices: Sequence[Device], visible: str | None, device_order: str | None
                ) -> str | None:
    """A warning that indices in CUDA_VISIBLE_DEVICES may mean other cards than they seem to; None
    if they can't.

    CUDA numbers the fastest card first unless CUDA_DEVICE_ORDER is PCI_BUS_ID; the driver, and so
    this program, follows PCI order. With cards of one model both are the same.
    """
    models = sorted({d.name.split(" MIG ")[0] for d in devices})
    if not visible or not re.match(r"\s*\d", visible) or device_order == "PCI_BUS_ID" \
            or len(models) < 2:
        return None
    return (f"CUDA_VISIBLE_DEVICES={visible} is ambiguous here: without "
            "CUDA_DEVICE_ORDER=PCI_BUS_ID, CUDA numbers the fastest card first, and this machine "
            f"has {' and '.join(models)}. It is read in PCI order here, as nvidia-smi shows it; "
            "set CUDA_DEVICE_ORDER=PCI_BUS_ID or use UUIDs to be sure")


def rocm(devices: Sequence[Device], environ: Mapping[str, str]) -> tuple[Device, ...]:
    """The devices that ROCm's variables make visible, in their order, with `visible_index` set."""
    shown = list(devices)
    for variable in rocms(environ):
        chosen: list[Device] = []
        for entry in environ[variable].split(","):
            name = entry.strip()
            named = dict(enumerate(shown)).get(int(name)) if name.isdecimal() else None
            device = named or _of_uuid(shown, name[:4].upper() + name[4:].lower(), ("GPU-",))
            if device is None or device in chosen:
                break
            chosen.append(device)
        shown = chosen
    return _numbered(shown) if any(v in environ for v in (ROCR, *HIP)) else tuple(devices)


def rocms(environ: Mapping[str, str]) -> list[str]:
    """The variables in `environ` that have a say about AMD's devices."""
    later = next((v for v in HIP if environ.get(v)), next((v for v in HIP if v in environ), ""))
    return [v for v in (ROCR, later) if v in environ]


def _of_uuid(devices: Sequence[Device], entry: str, starts: tuple[str, ...]) -> Device | None:
    """The device with this UUID, or with the only one that begins so."""
    if not entry.startswith(starts) or len(entry) == 4:
        return None
    fits = [d for d in devices if d.uuid and d.uuid.startswith(entry)]
    exact = next((d for d in fits if d.uuid == entry), None)
    return exact or (fits[0] if len(fits) == 1 else None)


def _numbered(devices: Sequence[Device]) -> tuple[Device, ...]:
    return tuple(replace(d, visible_index=i) for i, d in enumerate(devices))
