"""Which lines held a GPU's memory when it was used up (`run.oom_snapshot`): torch's history of its
allocator, and what it says.

The whole of it is a pickle for https://pytorch.org/memory_viz. Nobody of us reads that again: a
pickle may run anything. What we tell is worked out here, and written as JSON beside it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...common import files, units
from ...events.paths import SNAPSHOT, TRACES
from . import torch_private
from .memory import is_gpu_out_of_memory
from .standing import own_line

ENTRIES = 100_000
"""What the allocator did last, that is kept: some ten steps of a large model."""
_NO_LINE = "no line of Python, as in a backward pass"
_TOLD = 3
_MOST_PLACES = 20
"""Places that are written down."""
_from_start = False
"""Whether `run.oom_snapshot` asks for what held the memory when it was used up."""


class Place(NamedTuple):
    """What one line of code held."""

    place: str
    bytes: int
    blocks: int


class Held(NamedTuple):
    """What was held at one moment."""

    places: list[Place]
    """Those that held most, most first."""
    bytes: int
    """Of all places, and `early`."""
    early: int
    """Bytes of these whose place is not known, as they were allocated before anybody noted it."""


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
    """Write what was held when `err` came, into the run folder `folder`. Returns the lines that
    held most, in words; none if `err` is another error, or nobody asked for it."""
    if not (_from_start and is_gpu_out_of_memory(err)):
        return ()
    with contextlib.suppress(Exception):  # the error itself is what has to be told
        snapshot = torch_private.memory_snapshot()
        if any(snapshot["device_traces"]):
            told = summary(snapshot)
            with contextlib.suppress(OSError):  # a full disk
                write(folder, name, snapshot, told)
            return tuple(f"{units.size(one['bytes'])} by {one['place']}" for one in told["places"]
                         )[:_TOLD]
    return ()


def summary(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """What a snapshot says of the device that held most when an allocation failed there last, as
    the JSON that is written: bytes, and the lines that held most.

    The snapshot's form is in the docstring of `torch.cuda.memory._snapshot`.
    """
    each = defaultdict(list)
    for segment in snapshot["segments"]:
        each[segment.get("device", 0)].append(segment)
    found = []
    for device, trace in enumerate(snapshot["device_traces"]):
        failed = next((i for i in range(len(trace) - 1, -1, -1) if trace[i]["action"] == "oom"),
                      None)
        if failed is not None:
            found.append((_held(each[device], trace, failed), device, failed))
    if not found:  # it is older than what is kept
        found = [(_held(each[device], (), 0), device, None) for device in each] \
            or [(Held([], 0, 0), 0, None)]
    most, device, failed = max(found, key=lambda one: one[0].bytes)
    reserved = sum(s["total_size"] for s in each[device])
    allocated = sum(s["allocated_size"] for s in each[device])
    return {"device": device, "bytes": most.bytes, "early": most.early,
            "requested": None if failed is None
            else snapshot["device_traces"][device][failed]["size"],
            "reserved": reserved, "allocated": allocated,
            # Free, and yet not to be given back, as something else of the segment is in use.
            "fragmented": sum(s["total_size"] - s["allocated_size"] for s in each[device]
                              if s["allocated_size"]),
            "places": [one._asdict() for one in most.places]}


def _held(segments: Iterable[Mapping[str, Any]], trace: Iterable[Mapping[str, Any]],
          failed: int) -> Held:
    """What was held before the entry `failed` of the trace."""
    actions: list[tuple[int, int, str | None]] = []
    moment = 0
    for number, entry in enumerate(trace):
        if number == failed:
            moment = len(actions)
        if entry["action"] == "alloc":
            actions.append((entry["addr"], entry["size"], _place(entry) or _NO_LINE))
        elif entry["action"] == "free_completed":
            actions.append((entry["addr"], -entry["size"], None))
    at_end = {}
    for segment in segments:
        address = segment.get("address", 0)
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                at_end[block.get("address", address)] = block["size"], _place(block)
            address += block["size"]
    return held(actions, at_end, moment)


def held(actions: Sequence[tuple[int, int, str | None]],
         at_end: Mapping[int, tuple[int, str | None]], moment: int) -> Held:
    """Who held what after the first `moment` actions, each (address, bytes, place): more than 0
    bytes are allocated there by this place, less are freed. `at_end`: (bytes, place) by address of
    everything that is held after the last action. Pure."""
    live: dict[int, tuple[int, str | None]] = {}
    then: list[tuple[int, str | None]] = []
    early = 0
    for number, (address, size, place) in enumerate(actions):
        if number == moment:
            then = list(live.values())
        if size > 0:
            live[address] = size, place
        elif live.pop(address, None) is None and number >= moment:
            early -= size  # it was there before the first action
    if moment == len(actions):
        then = list(live.values())
    then += [block for address, block in at_end.items() if address not in live]
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for size, place in then:
        if place is None:
            early += size
        else:
            sums[place][0] += size
            sums[place][1] += 1
    places = sorted((Place(place, size, count) for place, (size, count) in sums.items()),
                    key=lambda one: -one.bytes)
    return Held(places[:_MOST_PLACES], sum(p.bytes for p in places) + early, early)


def _place(entry: Mapping[str, Any]) -> str | None:
    """The line that allocated it; if that is all a library's, the innermost of these."""
    frames = [(f["filename"], f["line"], f["name"]) for f in entry.get("frames") or ()]
    return own_line(frames) or next(
        (f"{Path(file).name}:{line} in {name}" for file, line, name in frames), None)


def write(folder: Path, name: str, snapshot: object, told: object) -> None:
    """Write the files NAME.pickle and NAME.json in `folder`. Raises OSError."""
    traces = made(folder)
    temporary = f".{os.getpid()}.{name}"
    fd = files.open_inside(folder, f"{TRACES}/{temporary}", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        with os.fdopen(fd, "wb") as file:
            pickle.dump(snapshot, file)
        (traces / temporary).replace(traces / (name + SNAPSHOT))
    except BaseException:
        (traces / temporary).unlink(missing_ok=True)
        raise
    files.write_inside(folder, f"{TRACES}/{name}.json", json.dumps(told), settled=False)


def made(folder: Path) -> Path:
    """The folder of traces in the run folder `folder`. Raises OSError."""
    traces = folder / TRACES
    traces.mkdir(mode=0o700, exist_ok=True)
    if traces.is_symlink():
        raise OSError(f"{traces} is a link")
    return traces
