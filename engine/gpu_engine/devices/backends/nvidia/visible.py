"""Which devices a value of CUDA_VISIBLE_DEVICES makes visible. Pure.

The rules are CUDA's (CUDA C++ Programming Guide, environment variables; for odd values, the parsers
of nvitop and PyTorch show what the driver does):

- entries are indices or UUIDs, and the first entry decides which; a UUID may be cut short as long
  as it is unambiguous ("GPU-8932f9"), and a MIG slice is "MIG-…" or, with old drivers,
  "MIG-GPU-<uuid>/<gi>/<ci>";
- an index is read like C's strtoul: blanks before it and anything after it are ignored;
- the first entry that names no device ends the list; the entries before it stay visible;
- if an entry occurs twice, no device is visible;
- an empty value, or "-1", hides every GPU.

One rule is left out on purpose: a single process sees only the first of several MIG slices, but
each rank is a process with its own variable, so all slices in the list can be used.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from gpu_engine.devices.records import Device


def narrow(devices: Sequence[Device], visible: str | None) -> tuple[Device, ...]:
    """The devices that the value `visible` makes visible, in its order, with `visible_index` set.

    `devices`: all GPUs and MIG slices of the machine. `visible` is None if the variable is not set.
    As in CUDA, the index of a GPU in MIG mode stands for its first slice.
    """
    if visible is None:
        return tuple(devices)
    entries = [e.strip() for e in visible.split(",")]
    by_uuid = not re.match(r"[+-]?\d", entries[0])
    chosen: list[Device] = []
    for entry in entries:
        device = _named(devices, entry, by_uuid)
        if device is None:
            break
        if device in chosen:
            return ()
        chosen.append(device)
    return tuple(replace(d, visible_index=i) for i, d in enumerate(chosen))


def unread(shown: Sequence[Device], visible: str | None) -> str | None:
    """What of the value CUDA passes over without a word, where it makes `shown` visible: "-3" of
    "0-3", "9,1" of "0,9,1" if there is no GPU 9. None: nothing. A list may be ended by -1."""
    if not visible or not shown:
        return None
    entries = [e.strip() for e in visible.split(",")]
    read, rest = entries[:len(shown)], entries[len(shown):]
    over = [e[n.end():] for e in read if (n := re.match(r"\+?\d+", e))]
    over += [] if rest[:1] == ["-1"] else rest
    return ",".join(filter(None, over)) or None


def order_doubt(devices: Sequence[Device], visible: str | None, device_order: str | None
                ) -> str | None:
    """A warning that indices in CUDA_VISIBLE_DEVICES may mean other cards than they seem to; None
    if they can't.

    CUDA numbers the fastest card first unless CUDA_DEVICE_ORDER is PCI_BUS_ID; the driver, and so
    this program, follows PCI order. With cards of one model both are the same.
    """
    if not visible or not re.match(r"\s*\d", visible) or device_order == "PCI_BUS_ID":
        return None
    models = sorted({d.name.split(" MIG ")[0] for d in devices})
    if len(models) < 2:
        return None
    return (f"CUDA_VISIBLE_DEVICES={visible} is ambiguous here: without "
            "CUDA_DEVICE_ORDER=PCI_BUS_ID, CUDA numbers the fastest card first, and this machine "
            f"has {' and '.join(models)}. It is read in PCI order here, as nvidia-smi shows it; "
            "set CUDA_DEVICE_ORDER=PCI_BUS_ID or use UUIDs to be sure")


def _named(devices: Sequence[Device], entry: str, by_uuid: bool) -> Device | None:
    if not by_uuid:
        number = re.match(r"\+?(\d+)", entry)
        return next((d for d in devices if number and d.index == int(number[1])), None)
    if not entry.startswith(("GPU-", "MIG-")) or len(entry) == 4:
        return None
    fits = [d for d in devices if d.uuid and d.uuid.startswith(entry)]
    exact = next((d for d in fits if d.uuid == entry), None)
    return exact or (fits[0] if len(fits) == 1 else None)
