"""Traces of torch's profiler: asking the ranks of a live run for one of their next steps, which
`worker/rank/tracer.py` writes; and which operators take longest in one. All else is for Perfetto.

A trace is JSON of Chrome's format: ranges with a category, a thread, a beginning and a length in
microseconds. Where there are kernels of a GPU, these are looked at, else the processor's operators.
"""

from __future__ import annotations

import gzip
import math
import os
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import file_inside, reason, write_json_inside
from gpu_engine.events.paths import MOST_TRACED, TRACE_REQUEST, TRACES
from gpu_engine.events.reader import Tail
from gpu_engine.events.schema import Trace
from gpu_engine.events.view import RunView
from gpu_engine.runs import trust
from gpu_engine.runs.folder import Run

_NEAR = 1 << 16
"""Bytes of events that tell how far a rank is."""
_SEEN = 2.5
"""Seconds within which every rank has seen a request."""
_EVERY = 0.2
_NAMED = 8
"""The most files that a message names."""


def made(run: Run) -> list[Path]:
    """The files that were traced so far, by their names. None of a folder that is a link."""
    folder = run.path / TRACES
    try:
        if folder.is_symlink():
            return []
        with os.scandir(folder) as entries:
            return sorted(folder / one.name for one in entries
                          if one.is_file(follow_symlinks=False) and not one.name.startswith("."))
    except OSError:
        return []


def trace(run: Run, *, steps: int = 3, ranks: Collection[int] = (), wait: float = 120.0
          ) -> dict[int, Trace | None]:
    """Have `ranks` (none: all) trace their next steps, and wait for at most `wait` seconds.

    Returns what each rank has answered; None: nothing, as it makes no steps or has ended. Raises
    UserError and OSError.
    """
    trust.require_ours(run.path)
    state, plan, there = run.state(), run.plan(), run.ranks()
    if not state.live:
        before = made(run)
        more = f" and {len(before) - _NAMED} more" if len(before) > _NAMED else ""
        raise UserError(f"run {run.id} is not running: it is {state.state}" + (
            "; traced before, for https://ui.perfetto.dev: "
            f"{', '.join(clean(str(one)) for one in before[:_NAMED])}{more}" if before else ""))
    if plan is not None and plan.on_hosts:
        raise UserError(f"the ranks of {run.id} are on other machines: gpu-engine trace there")
    if not 0 < steps <= MOST_TRACED:
        raise UserError(f"{steps} steps: from 1 to {MOST_TRACED} can be traced")
    if unknown := set(ranks) - set(there):
        raise UserError(f"run {run.id} has no rank {min(unknown)} yet")
    asked, view = sorted(ranks or there), RunView()
    view.add(asked)
    tails = {rank: Tail(run.events(rank)) for rank in asked}
    for tail in tails.values():
        tail.skip(keep=_NEAR)
    until = time.time() + _SEEN
    while True:
        _read(tails, view)
        if all(v.steps_per_s for v in view.ranks.values()) or time.time() > until:
            break
        time.sleep(_EVERY)
    begun = time.time()
    # All ranks begin at the same step: one that none of them reaches before the last has seen the
    # request.
    last = max((v.at_step or 0 for v in view.ranks.values()), default=0)
    pace = max((v.steps_per_s or 0.0 for v in view.ranks.values()), default=0.0)
    write_json_inside(run.path, TRACE_REQUEST, {
        "steps": steps, "from": last + math.ceil(pace * _SEEN), "until": begun + wait,
        "ranks": asked}, settled=False)
    try:
        while True:
            _read(tails, view)
            answers = {r: one if (one := v.trace) is not None and one.t >= begun else None
                       for r, v in view.ranks.items()}
            if all(answers.values()) or time.time() > begun + wait or not run.state().live:
                return answers
            time.sleep(_EVERY)
    finally:
        (run.path / TRACE_REQUEST).unlink(missing_ok=True)


def _read(tails: dict[int, Tail], view: RunView) -> None:
    for rank, tail in tails.items():
        for event in tail.read():
            view.fold(rank, event)


# --- what a trace says ----------------------------------------------------------------------------

_ON_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_MOST = 512 << 20
"""Bytes of JSON that are read at most."""
_LISTED = 8
"""Operators that are named."""


class _Range(msgspec.Struct):
    ph: str = ""
    cat: str | None = None
    name: str = ""
    tid: int | str | None = None
    ts: float = 0.0
    dur: float = 0.0

    @property
    def end(self) -> float:
        return self.ts + self.dur


class _File(msgspec.Struct):
    traceEvents: list[_Range]


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator, or a kernel of a GPU."""

    name: str
    seconds: float
    """In all of its calls, without those that it made itself."""
    calls: int


@dataclass(frozen=True, slots=True)
class Summary:
    """What takes the time of a trace."""

    steps: int
    seconds: float
    gpu: bool
    """Whether the operators are kernels of a GPU."""
    operators: tuple[Operator, ...]
    """The longest first."""


def read(run: Path, name: str) -> Summary:
    """The trace `name` in the run folder `run`. Raises UserError if it is none, or is too large."""
    try:
        with file_inside(run, name) as file, gzip.open(file) as plain:
            data = plain.read(_MOST + 1)
        if len(data) > _MOST:
            raise UserError(f"{name}: larger than {_MOST >> 20} MiB; open it in Perfetto, or trace "
                            "fewer steps")
        events = msgspec.json.decode(data, type=_File).traceEvents
    except OSError as err:
        raise UserError(f"{name}: {reason(err)}") from None
    except (ValueError, EOFError, zlib.error, msgspec.MsgspecError) as err:
        raise UserError(f"{name}: no trace: {err}") from None
    ranges = sorted((e for e in events if e.ph == "X" and e.dur > 0), key=lambda e: e.ts)
    marks = [e for e in ranges if e.cat == "user_annotation" and e.name.startswith("ProfilerStep#")]
    if not marks:
        raise UserError(f"{name}: there is no whole step in the trace")
    begin, end = marks[0].ts, max(e.end for e in marks)
    ranges = [e for e in ranges if begin <= e.ts < end]
    kernels = [e for e in ranges if e.cat in _ON_GPU]
    work = kernels or [e for e in ranges if e.cat == "cpu_op"]
    seconds: dict[str, float] = defaultdict(float)
    callers: dict[object, list[_Range]] = defaultdict(list)
    for one in work:  # in the order of their beginning
        seconds[one.name] += one.dur / 1e6
        if not kernels:  # an operator's own time is without that of those inside of it
            stack = callers[one.tid]
            while stack and stack[-1].end <= one.ts:
                stack.pop()
            if stack:
                seconds[stack[-1].name] -= one.dur / 1e6
            stack.append(one)
    calls = Counter(one.name for one in work)
    longest = sorted(seconds, key=lambda name: -seconds[name])[:_LISTED]
    return Summary(len(marks), (end - begin) / 1e6, bool(kernels), tuple(
        Operator(name, max(seconds[name], 0.0), calls[name]) for name in longest))


def describe(run: Run, answer: Trace | None) -> tuple[Path | None, Summary | None, list[str]]:
    """Of what a rank of `run` has answered: the file, its summary, and the lines for people."""
    if answer is None:
        return None, None, ["no trace: it made no step in that time, or has ended; gpu-engine "
                            f"stacks {run.id} says where it is"]
    if answer.path is None:
        return None, None, [f"no trace: {answer.problem}"]
    path = run.path / answer.path
    try:
        whole = read(run.path, answer.path)
    except UserError as err:
        return path, None, [str(err)]
    lines = [f"{whole.steps} step{'s' * (whole.steps > 1)} in {_time(whole.seconds)}, "
             f"{_time(whole.seconds / whole.steps)} each with the profiler"]
    for one in whole.operators:
        name = one.name
        for part in ("void ", "at::native::", "(anonymous namespace)::"):  # all of torch's have it
            name = name.replace(part, "")
        lines.append(f"{_time(one.seconds):>9}  {one.seconds / whole.seconds:4.0%}  "
                     f"{one.calls:6,}×  {name[:100]}")
    return path, whole, lines


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms" \
        if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"
