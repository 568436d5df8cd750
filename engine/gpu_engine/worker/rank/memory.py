"""How much memory this process uses, the event for the error that ends a rank, and which
lines held a GPU's memory when it was used up (`run.oom_snapshot`).

The whole of torch's history is a pickle for https://pytorch.org/memory_viz. Nobody of us reads that
again: a pickle may run anything. What we tell is worked out here.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import sys
import traceback
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from ...common import cgroups, files, procs, units
from ...events import notices, schema
from ...events.paths import SNAPSHOT, TRACES
from . import torch_private
from .standing import own_line

if TYPE_CHECKING:
    import torch


_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_TRIED = re.compile(r"Tried to allocate ([\d.]+) (\w+)")
_TRIED_CPU = re.compile(r"you tried to allocate (\d+) bytes", re.IGNORECASE)


def in_use(gpus: Sequence[int | torch.device]) -> schema.Memory:
    """What this process uses now of the host's memory and of each of `gpus` (devices, or indices
    as torch.cuda takes them)."""
    if not gpus:
        return schema.Memory(_of_status("VmRSS"), rss_peak=_of_status("VmHWM"))
    import torch

    stats = [torch.cuda.memory_stats(gpu) for gpu in gpus]  # counted on the host, no GPU call

    def each(name: str) -> tuple[int, ...]:
        return tuple(s.get(name, 0) for s in stats)

    retries = each("num_alloc_retries")
    return schema.Memory(
        _of_status("VmRSS"), gpu_allocated=each("allocated_bytes.all.current"),
        gpu_reserved=each("reserved_bytes.all.current"), gpu_peak=each("allocated_bytes.all.peak"),
        # Asked once of the driver, then kept by torch.
        gpu_total=tuple(torch.cuda.get_device_properties(gpu).total_memory for gpu in gpus),
        gpu_retries=retries if any(retries) else ())


_LOOKS = 6
"""Looks at the memory, one a second, in each of which it has grown."""
_GROWN = 256 << 20
"""Bytes that it has grown by then, at least."""
_LEFT, _SOON = 0.15, 60.0
"""The share of the machine's memory that is left at most, and for how many seconds it lasts."""


class Filling:
    """Whether this process is about to fill the host's memory. Pages that the kernel can drop, as
    those of a file that is mapped, are not counted."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=_LOOKS)
        self._told = False

    def look(self, now: float) -> schema.Warning | None:
        """What is to be told, once. Call it once a second."""
        own = _of_status("RssAnon")
        if self._told or own is None:
            return None
        if self._seen and own <= self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now, own))
        (began, before), seconds = self._seen[0], now - self._seen[0][0]
        if len(self._seen) < _LOOKS or own - before < _GROWN:
            return None
        used, total = cgroups.memory()
        left = None if used is None or total is None else total - used
        if left is None or left > _LEFT * (total or 0) \
                or left * seconds > _SOON * (own - before):
            return None
        self._told = True
        return notices.memory_fills(own - before, now - began, left)


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
    return torch is not None and isinstance(err, torch.cuda.OutOfMemoryError)


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


def _of_status(field: str) -> int | None:
    """A size in /proc/self/status, in bytes. Its peak is this program's: getrusage's ru_maxrss is
    inherited over exec."""
    words = procs.status("self", field).split()
    return int(words[0]) << 10 if words else None


# ------------------------------------------------------------------------------------------------
# Which lines held a GPU's memory when it was used up (`run.oom_snapshot`).


ENTRIES = 100_000
"""What the allocator did last, that is kept: some ten steps of a large model."""
_TOLD = 3
_from_start = False
"""Whether `run.oom_snapshot` asks for what held the memory when it was used up."""


def record_from_start() -> None:
    """Record from when this process begins to use its GPUs, for `out_of_memory`."""
    global _from_start
    _from_start = True

    def begin() -> None:
        with contextlib.suppress(Exception):  # torch would raise it in the script
            torch_private.record_memory(ENTRIES)

    with contextlib.suppress(Exception):
        torch_private.when_gpus_are_used(begin)


def out_of_memory(err: BaseException, folder: Path, name: str) -> tuple[str, ...]:
    """Write what is held as `err` has come, as NAME.pickle in the run folder `folder`. Returns the
    lines that hold most, in words; none if `err` is another error, or nobody asked for it."""
    if not (_from_start and is_gpu_out_of_memory(err)):
        return ()
    with contextlib.suppress(Exception):  # the error itself is what has to be told
        snapshot = torch_private.memory_snapshot()
        with contextlib.suppress(OSError):  # a full disk
            write_snapshot(folder, name, snapshot)
        return tuple(f"{units.size(held)} by {place}" for place, held in holders(snapshot)[:_TOLD])
    return ()


def holders(snapshot: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Lines of code, and the bytes that they hold, most first. The error's traceback keeps alive
    what the script held when it came. Of what has no Python line, as it came before the record or
    in a backward pass, nothing is said.

    The snapshot's form is in the docstring of `torch.cuda.memory._snapshot`.
    """
    sums: dict[str, int] = defaultdict(int)
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            place = _place(block)
            if block["state"] != "inactive" and place is not None:
                sums[place] += block["size"]
    return sorted(sums.items(), key=lambda held: -held[1])


def _place(block: Mapping[str, Any]) -> str | None:
    """The line that allocated it; if that is all a library's, the innermost of these."""
    frames = [(f["filename"], f["line"], f["name"]) for f in block.get("frames") or ()]
    return own_line(frames) or next(
        (f"{Path(file).name}:{line} in {name}" for file, line, name in frames), None)


def write_snapshot(folder: Path, name: str, snapshot: object) -> None:
    """Write the file NAME.pickle in `folder`. Raises OSError."""
    traces = traces_folder(folder)
    temporary = f".{os.getpid()}.{name}"
    fd = files.open_inside(folder, f"{TRACES}/{temporary}", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        with os.fdopen(fd, "wb") as file:
            pickle.dump(snapshot, file)
        (traces / temporary).replace(traces / (name + SNAPSHOT))
    except BaseException:
        (traces / temporary).unlink(missing_ok=True)
        raise


def traces_folder(folder: Path) -> Path:
    """The folder of traces in the run folder `folder`. Raises OSError."""
    traces = folder / TRACES
    traces.mkdir(mode=0o700, exist_ok=True)
    if traces.is_symlink():
        raise OSError(f"{traces} is a link")
    return traces
