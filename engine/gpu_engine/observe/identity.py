"""Which rank an observed process is, the event with which it starts, and where the observer reports
problems of its own."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..common import procs
from ..common.files import open_inside
from ..events import schema


class Identity(NamedTuple):
    """A rank's place among all ranks."""

    rank: int
    world_size: int
    local_rank: int | None
    node: int


def identify() -> Identity:
    """Which rank this process is now, according to its process group, else to its environment,
    else to the plan, in which a command starts as a single rank."""
    env, torch = os.environ, sys.modules.get("torch")
    dist = getattr(torch, "distributed", None)
    if dist is not None and dist.is_available() and dist.is_initialized():
        rank, world_size = dist.get_rank(), dist.get_world_size()
    else:
        rank = _first_int("RANK", "GPU_PANEL_RANK") or 0
        world_size = _int(env.get("WORLD_SIZE"))
    return Identity(rank, 1 if world_size is None else world_size, _first_int("LOCAL_RANK"),
                    _first_int("GROUP_RANK", "NODE_RANK") or 0)


def devices_given() -> tuple[str, ...]:
    """The labels of the devices that the run's plan gives to this machine's ranks."""
    return tuple(x for x in os.environ.get("GPU_PANEL_DEVICES", "").split(";") if x)


def device_labels(who: Identity, cuda: int | None) -> tuple[str, ...]:
    """The labels of this rank's devices in the plan. `cuda`: the index of the GPU that the rank
    was seen to use, or None if unknown."""
    given = devices_given()
    if who.world_size == 1 or len(given) < 2:
        return given or ("?",)
    at = next(n for n in (cuda, who.local_rank, who.rank) if n is not None)
    return (given[at],) if at < len(given) else ("?",)


def start_event(who: Identity, devices: Sequence[str], process: int) -> schema.Start:
    """The event with which this process begins as a rank. `process` counts, from 1, the processes
    that train as the same rank at the same time; all but the first have a record of their own,
    with a number beyond those of the ranks."""
    pid, first = os.getpid(), process == 1
    return schema.Start(
        record_number(who, process), who.local_rank, who.node, pid, procs.start_ticks(pid),
        who.world_size, tuple(devices), _first_int("GPU_PANEL_ATTEMPT") or 1,
        as_rank=None if first else who.rank, process=None if first else process)


def record_number(who: Identity, process: int) -> int:
    """The number of the record for the `process`-th process, from 1, that trains as this rank."""
    return who.rank + (process - 1) * who.world_size


def _first_int(*names: str) -> int | None:
    """The value of the first of these environment variables that holds a whole number."""
    return next((n for name in names if (n := _int(os.environ.get(name))) is not None), None)


def _int(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None

# ------------------------------------------------------------------------------------------------
# Reports problems of the observer itself when there is no record for them.


def note(text: str, run: Path) -> None:
    """Add a line to `observe-errors.log` in the run folder. Never raises."""
    with contextlib.suppress(Exception):
        fd = open_inside(run, "observe-errors.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        with os.fdopen(fd, "a") as file:
            file.write(f"{os.getpid()} {text}\n")
