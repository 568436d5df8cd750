"""Out of memory: the kernel's count of kills on the host, and advice on what would fit on a GPU."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

from gpu_engine.common import units
from gpu_engine.events import schema
from gpu_engine.plan import own_command
from gpu_engine.plan.records import LaunchPlan


def kills(root: Path = Path("/")) -> int | None:
    """How many out-of-memory kills the kernel has counted: in our cgroup, else on the whole
    machine; None if no count can be read."""
    places = [root / "proc/vmstat"]
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                places.insert(0, root / f"sys/fs/cgroup{line[3:]}/memory.events")
    for place in places:
        with contextlib.suppress(OSError):
            for line in place.read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill" and value.strip().isdigit():
                    return int(value)
    return None


def is_gpu(error: schema.Error) -> bool:
    """Whether an error event says that a GPU ran out of memory."""
    message = error.message.lower()
    return error.type == "OutOfMemoryError" or ("out of memory" in message and "cuda" in message)


class Given(NamedTuple):
    """What the ranks were given of the batch."""

    per_gpu: int
    """Examples in one forward pass."""
    accumulate: int | None
    """Backward passes a step; None: that did not reach them."""

    @classmethod
    def by(cls, plan: LaunchPlan) -> Given | None:
        """By a plan. None: the ranks have a batch of their own, which is not known: a person's own
        command knows only what its placeholders tell it."""
        command, batch = plan.spec.task.command, plan.batch
        if command is None:
            return cls(batch.per_gpu, batch.accumulate)
        told = own_command.used(command)
        if "batch.per_gpu" not in told:
            return None
        return cls(batch.per_gpu, batch.accumulate if "batch.accumulate" in told else None)


def describe(error: schema.Error, given: Given | None) -> str:
    """How much memory was requested and in use, which lines held most if that was recorded, and
    which batch would likely fit."""
    figures = [f"{name} {units.size(value)}" for name, value in (
        ("requested", error.requested), ("allocated", error.allocated),
        ("reserved", error.reserved)) if value is not None]
    held = f"held most: {', '.join(error.held_by[:3])}" if error.held_by else ""
    advice = fitting(given) if given is not None else ""
    return "; ".join(filter(None, (", ".join(figures), held, advice)))


def fitting(given: Given) -> str:
    """Advice on which batch would likely fit: the largest divisor of the batch of at most its half,
    so that accumulation can keep the global batch."""
    size, accumulate = given
    if size == 1:
        return "the batch is already 1 per GPU: use a smaller model, bf16 or a larger GPU"
    fits = max(d for d in range(1, size // 2 + 1) if size % d == 0)
    advice = f"{fits} examples per GPU instead of {size} would likely fit"
    if accumulate is None:
        return advice
    return f"{advice}; batch.accumulate={accumulate * size // fits} keeps the global batch"
