"""What a device's memory held when there was not enough of it."""

from __future__ import annotations

import re
import sys
from typing import Any

_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_TRIED = re.compile(r"Tried to allocate ([\d.]+) (\w+)")
_TRIED_CPU = re.compile(r"you tried to allocate (\d+) bytes", re.IGNORECASE)


def of_error(err: BaseException) -> dict[str, Any]:
    """allocated, reserved and requested (bytes) of an out-of-memory error; {} of any other.

    What was requested stands in the message alone (c10/cuda/CUDACachingAllocator.cpp).
    """
    torch = sys.modules.get("torch")
    text = str(err)
    if torch is None or not hasattr(torch, "OutOfMemoryError"):
        return {}
    if isinstance(err, torch.OutOfMemoryError):
        found = _TRIED.search(text)
        requested = int(float(found[1]) * _UNITS.get(found[2], 1)) if found else None
        if not torch.cuda.is_available():
            return {"requested": requested}
        stats = torch.cuda.memory_stats()
        return {"allocated": stats.get("allocated_bytes.all.current"),
                "reserved": stats.get("reserved_bytes.all.current"), "requested": requested}
    found = _TRIED_CPU.search(text) if isinstance(err, RuntimeError) else None
    return {"requested": int(found[1])} if found else {}
