"""How much memory this process uses, and the event for the error that ends a rank, with the figures
of an out-of-memory error."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from ...events import schema

if TYPE_CHECKING:
    import torch

_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_TRIED = re.compile(r"Tried to allocate ([\d.]+) (\w+)")
_TRIED_CPU = re.compile(r"you tried to allocate (\d+) bytes", re.IGNORECASE)
_PAGE = os.sysconf("SC_PAGE_SIZE")


def in_use(gpus: Sequence[int | torch.device]) -> schema.Memory:
    """What this process uses now of the host's memory and of each of `gpus` (devices, or indices
    as torch.cuda takes them)."""
    if not gpus:
        return schema.Memory(_rss())
    import torch

    stats = [torch.cuda.memory_stats(gpu) for gpu in gpus]  # counted on the host, no GPU call

    def each(name: str) -> tuple[int, ...]:
        return tuple(s.get(name, 0) for s in stats)

    retries = each("num_alloc_retries")
    return schema.Memory(
        _rss(), gpu_allocated=each("allocated_bytes.all.current"),
        gpu_reserved=each("reserved_bytes.all.current"), gpu_peak=each("allocated_bytes.all.peak"),
        # Asked once of the driver, then kept by torch.
        gpu_total=tuple(torch.cuda.get_device_properties(gpu).total_memory for gpu in gpus),
        gpu_retries=retries if any(retries) else ())


class ErrorMemory(TypedDict, total=False):
    """The fields of an `Error` event about memory, in bytes."""

    allocated: int | None
    reserved: int | None
    requested: int | None


def _of_error(err: BaseException) -> ErrorMemory:
    """allocated, reserved and requested (bytes) for an out-of-memory error; {} for any other.

    The size of the request is found only in the message (c10/cuda/CUDACachingAllocator.cpp).
    """
    torch = sys.modules.get("torch")
    text = str(err)
    if torch is None:
        return {}
    if is_gpu_out_of_memory(err):
        found = _TRIED.search(text)
        requested = int(float(found[1]) * _UNITS.get(found[2], 1)) if found else None
        if not torch.cuda.is_available():
            return {"requested": requested}
        stats = torch.cuda.memory_stats()
        return {"allocated": stats.get("allocated_bytes.all.current"),
                "reserved": stats.get("reserved_bytes.all.current"), "requested": requested}
    found = _TRIED_CPU.search(text) if isinstance(err, RuntimeError) else None
    return {"requested": int(found[1])} if found else {}


def is_gpu_out_of_memory(err: BaseException) -> bool:
    """Whether `err` is torch's error of a GPU whose memory is used up."""
    torch = sys.modules.get("torch")
    kind = getattr(torch, "OutOfMemoryError", None)
    if kind is None:  # before torch 2.5
        kind = getattr(getattr(torch, "cuda", None), "OutOfMemoryError", None)
    return kind is not None and isinstance(err, kind)


def error_event(err: BaseException, phase: str, step: int, *, held_by: tuple[str, ...] = (),
                traced: bool = True, more: str = "") -> schema.Error:
    """The event for an error that ends the rank in `phase`, after `step` steps. `held_by`: the
    lines that held most memory. `traced`: include the traceback, which a person's own mistake does
    not need. `more`: what the message leaves out."""
    held: ErrorMemory = {}
    with contextlib.suppress(Exception):  # reading memory fails if the driver is lost
        held = _of_error(err)
    text = "".join(traceback.format_exception(type(err), err, err.__traceback__)) if traced else ""
    return schema.Error(type(err).__name__, f"{err}{more}" or type(err).__name__, text, phase, step,
                        held_by=held_by, **held)


def _rss() -> int | None:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return None
