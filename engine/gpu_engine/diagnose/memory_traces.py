"""What holds the memory of a live run at a glance, from what a rank has written. Pure, but for
reading the file.

On a GPU the rank itself has worked it out (`worker/rank/gpu_memory.py`): its snapshot is a pickle,
which is never read here. On a processor torch's allocator keeps no history. There it is read from a
trace of the profiler, which has what is allocated and freed, inside of which operator, in which
function of Python.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from gpu_engine.common import units
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import read_inside
from gpu_engine.common.frozen import frozen
from gpu_engine.common.held_memory import Action, held
from gpu_engine.diagnose import trace_files
from gpu_engine.events.paths import SNAPSHOT

_MOST_TOLD = 1 << 20
"""Bytes that are read at most of what a rank has worked out."""
_TOLD = 10
_NOT_OWN = ("<", "nn.Module: ", "torch/")
_Int = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]


@frozen(slots=True)
class Place:
    """What one line of code, or one function and operator, holds."""

    place: str
    bytes: _Int
    blocks: _Int
    """How many pieces of memory."""


@frozen(slots=True)
class Summary:
    """What is held when most is held. All but places and device in bytes; None: not known."""

    places: list[Place]
    bytes: _Int
    early: _Int = 0
    """Of these, what was allocated before anybody noted by whom."""
    device: _Int | None = None
    """The index of the GPU; None: the processor."""
    reserved: _Int | None = None
    """Taken from the device, at the end of the steps."""
    allocated: _Int | None = None
    fragmented: _Int | None = None
    """Of what is reserved: free, but in pieces beside what is in use."""
    requested: _Int | None = None
    """What could not be allocated."""


class _Of(msgspec.Struct):
    addr: int | None = msgspec.field(default=None, name="Addr")
    size: _Int | None = msgspec.field(default=None, name="Bytes")
    device: int | None = msgspec.field(default=None, name="Device Type")


class _Entry(msgspec.Struct):
    ph: str = ""
    cat: str | None = None
    name: str = ""
    tid: int | str | None = None
    ts: float = 0.0
    dur: float = 0.0
    args: _Of | None = None


class _File(msgspec.Struct):
    traceEvents: list[_Entry]


def read(run: Path, name: str) -> Summary:
    """What the trace or snapshot `name` in the run folder `run` says. Raises UserError."""
    with trace_files.readable(name):
        if name.endswith(SNAPSHOT):
            told = read_inside(run, name[:-len(SNAPSHOT)] + ".json", _MOST_TOLD)
            return msgspec.json.decode(told, type=Summary)
        data = trace_files.unpacked(run, name)
        return of_processor(msgspec.json.decode(data, type=_File).traceEvents)


def of_processor(events: Iterable[_Entry]) -> Summary:
    """What a trace with memory says of the processor's. Raises UserError if it has none."""
    by_thread: dict[object, list[_Entry]] = defaultdict(list)
    for event in events:
        if event.name == "[memory]" or (event.ph == "X" and event.cat in (
                "python_function", "cpu_op")):
            by_thread[event.tid].append(event)
    found: list[tuple[float, Action]] = []
    for entries in by_thread.values():
        entries.sort(key=lambda e: (e.ts, -e.dur))
        stack: list[_Entry] = []
        for one in entries:
            while stack and stack[-1].ts + stack[-1].dur < one.ts:
                stack.pop()
            if one.name != "[memory]":
                stack.append(one)
            elif (of := one.args) and of.addr is not None and of.size and not of.device:
                found.append((one.ts, (of.addr, of.size, _place(stack) if of.size > 0 else None)))
    if not found:
        raise UserError("there is no memory in the trace")
    found.sort(key=lambda pair: pair[0])
    all_of = held([action for _, action in found])
    return Summary([Place(*one) for one in all_of.places], all_of.bytes, all_of.early)


def _place(stack: Sequence[_Entry]) -> str:
    """ "aten::linear in forward, net.py:12": the first operator that the innermost function of the
    person's own has called, and where that function begins; a trace has no lines within one."""
    at = next((i for i in range(len(stack) - 1, -1, -1)
               if stack[i].cat == "python_function" and _own(stack[i].name)), -1)
    operator = next((one.name for one in stack[at + 1:] if one.cat == "cpu_op"), None)
    if at < 0:
        return operator or "outside of any operator"
    file, _, function = stack[at].name.partition("): ")
    where = f"{function}, {file.replace('(', ':')}"
    return f"{operator} in {where}" if operator else where


def _own(name: str) -> bool:
    """Whether a function is neither a library's of Python's or torch's, nor ours. The profiler
    leaves the folder out of which something was imported."""
    file = name.partition("(")[0]
    first = file.partition("/")[0].removesuffix(".py")
    ours = "gpu_engine/" in file and "gpu_engine/tasks/" not in file
    return not (ours or name.startswith(_NOT_OWN) or first in sys.stdlib_module_names)


def lines(whole: Summary) -> list[str]:
    where = "the processor" if whole.device is None else f"GPU {whole.device}"
    out = [f"{where}: {units.size(whole.bytes)} held when it was most"
           + (f", {units.size(whole.early)} of it from before these steps" if whole.early else "")]
    if whole.reserved is not None:
        out.append(f"reserved {units.size(whole.reserved)}, allocated "
                   f"{units.size(whole.allocated)}, fragmented {units.size(whole.fragmented)}")
    out += [f"{units.size(one.bytes):>9}  {one.bytes / max(whole.bytes, 1):4.0%}  "
            f"{one.blocks:6,}×  {one.place[:120]}" for one in whole.places[:_TOLD]]
    if whole.device is None:
        out.append("of these steps alone: what was allocated before, as weights, is not in it; "
                   "operators and functions, as torch notes no lines on a processor")
    return out
