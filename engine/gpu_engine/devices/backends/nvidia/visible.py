"""Which devices a CUDA_VISIBLE_DEVICES lets through. Pure.

The rules are CUDA's (CUDA C++ Programming Guide, environment variables; what the driver does
with odd input as nvitop's and PyTorch's own parsers describe it):

- entries are indices or UUIDs, the first decides which; a UUID may be cut short as long as it
  stays unambiguous ("GPU-8932f9"), and a MIG slice is "MIG-…" or, on old drivers,
  "MIG-GPU-<uuid>/<gi>/<ci>";
- an index is read like C's strtoul: blanks before it and anything after it are ignored;
- the first entry that names nothing ends the list; what stands before it stays visible;
- an entry that comes twice makes the whole list void;
- set and empty, or "-1", hides every GPU.

One rule is left out on purpose: a single process sees only the first of several MIG slices, but
each rank is a process with a variable of its own, so all slices of the list can be used.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from gpu_engine.devices.records import Device


def narrow(devices: Sequence[Device], visible: str | None) -> tuple[Device, ...]:
    """The devices that `visible` lets through, in its order, with `visible_index` set.

    `devices` are all GPUs and MIG slices of the machine; None means that nothing was set.
    An index that names a GPU in MIG mode means its first slice, as for CUDA.
    """
    if visible is None:
        return tuple(devices)
    entries = [e.strip() for e in visible.split(",")]
    by_uuid = not re.match(r"[+-]?\d", entries[0])
    chosen: list[Device] = []
    for entry in entries:
        device = _by_uuid(devices, entry) if by_uuid else _by_index(devices, entry)
        if device is None:
            break
        if device in chosen:
            return ()
        chosen.append(device)
    return tuple(replace(d, visible_index=i) for i, d in enumerate(chosen))


def hides_all(visible: str | None) -> bool:
    """Whether somebody meant to hide every GPU: it is set, and its first entry can't name any."""
    return visible is not None and not re.match(r"\s*(\+?\d|GPU-.|MIG-.)", visible)


def order_doubt(
    devices: Sequence[Device], visible: str | None, device_order: str | None
) -> str | None:
    """Why indices in CUDA_VISIBLE_DEVICES may mean other cards than they seem to, or None.

    CUDA counts the fastest card first unless CUDA_DEVICE_ORDER is PCI_BUS_ID; the driver, and so
    this program, counts in PCI order. With cards of one model both are the same.
    """
    if not visible or not re.match(r"\s*\d", visible) or device_order == "PCI_BUS_ID":
        return None
    models = sorted({d.name.split(" MIG ")[0] for d in devices})
    if len(models) < 2:
        return None
    return (
        f"CUDA_VISIBLE_DEVICES={visible} is ambiguous here: without "
        f"CUDA_DEVICE_ORDER=PCI_BUS_ID, CUDA counts the fastest card first, and this machine has "
        f"{' and '.join(models)}. Taken as PCI order, which is what nvidia-smi shows; set "
        f"CUDA_DEVICE_ORDER=PCI_BUS_ID or use UUIDs to be sure"
    )


def _by_index(devices: Sequence[Device], entry: str) -> Device | None:
    number = re.match(r"\+?(\d+)", entry)
    if number is None:
        return None
    return next((d for d in devices if d.index == int(number[1])), None)


def _by_uuid(devices: Sequence[Device], entry: str) -> Device | None:
    if not entry.startswith(("GPU-", "MIG-")) or len(entry) == 4:
        return None
    fits = [d for d in devices if d.uuid and d.uuid.startswith(entry)]
    exact = [d for d in fits if d.uuid == entry]
    if exact:
        return exact[0]
    return fits[0] if len(fits) == 1 else None
