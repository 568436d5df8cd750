"""Out of memory: what the kernel counted on the host, and what would likely fit on the GPU."""

from __future__ import annotations

import re
from pathlib import Path

from gpu_engine.common import units
from gpu_engine.events import schema
from gpu_engine.plan.batch import Batch

_CAPACITY = re.compile(r"total capacity of ([\d.]+) (\w+)")
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_MARGIN = 0.9
"""Share of a device that is filled without trouble: fragments and peaks need the rest."""


def kills(root: Path = Path("/")) -> int | None:
    """Out-of-memory kills that the kernel counted: in our cgroup (version 2, then 1), else on the
    whole machine; None where nothing of it can be read."""
    try:
        groups = (root / "proc/self/cgroup").read_text()
    except OSError:
        groups = ""
    places = []
    for line in groups.splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            places.insert(0, root / f"sys/fs/cgroup{path}/memory.events")
        elif "memory" in names.split(","):
            places += [root / f"sys/fs/cgroup/memory{path}/memory.oom_control",
                       root / "sys/fs/cgroup/memory/memory.oom_control"]  # seen from inside
    for place in [*places, root / "proc/vmstat"]:
        try:
            text = place.read_text()
        except OSError:
            continue
        for line in text.splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill" and value.strip().isdigit():
                return int(value)
    return None


def is_gpu(error: schema.Error) -> bool:
    """Whether an `error` event tells of a GPU's memory."""
    message = error.message.lower()
    return error.type == "OutOfMemoryError" or ("out of memory" in message and "cuda" in message)


def words(error: schema.Error, batch: Batch | None) -> str:
    """What was asked, what was taken, and which batch would likely fit."""
    figures = [f"{name} {units.size(value)}" for name, value in (
        ("requested", error.requested), ("allocated", error.allocated),
        ("reserved", error.reserved)) if value is not None]
    advice = fitting(error, batch) if batch is not None else None
    return "; ".join(([", ".join(figures)] if figures else []) + ([advice] if advice else []))


def fitting(error: schema.Error, batch: Batch) -> str:
    """Which batch would likely fit. An estimate: activations grow with the batch, weights and
    optimizer don't, and what would have been asked for after the failure isn't known. So the
    batch is cut by what was taken and asked against 90 % of the device, to half at least, and
    further down to a divisor, so that accumulating keeps the global batch as it is.
    """
    size, accumulate = batch.per_gpu, batch.accumulate
    if size == 1:
        return "the batch is 1 per GPU already: a smaller model, bf16, or more memory"
    share = 0.5
    needed = (error.requested or 0) + (error.allocated or 0)
    capacity = _capacity(error.message)
    if capacity and needed:
        share = min(share, _MARGIN * capacity / needed)
    limit = max(int(size * share), 1)
    fits = max(d for d in range(1, limit + 1) if size % d == 0)
    same = accumulate * size // fits
    return (f"{fits} examples per GPU instead of {size} would likely fit; batch.accumulate="
            f"{same} keeps the global batch")


def _capacity(message: str) -> int | None:
    found = _CAPACITY.search(message)
    if found is None or found[2] not in _UNITS:
        return None
    return int(float(found[1]) * _UNITS[found[2]])
