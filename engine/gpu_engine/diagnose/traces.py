"""What a trace of torch's profiler says at a glance: the operators that take longest, how much of
the time nothing ran, whether communication is hidden behind computing, and what would help. Pure,
but for reading the file.

A trace is JSON of Chrome's format: ranges with a category, a thread, a beginning and a length in
microseconds. Where there are kernels of a GPU, these are looked at, else the processor's operators.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from math import inf
from operator import attrgetter
from pathlib import Path
from statistics import median

import msgspec

from gpu_engine.common.errors import UserError
from gpu_engine.diagnose import steps, trace_files
from gpu_engine.events.schema import Trace
from gpu_engine.runs.folder import Run

_ON_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_LOADER = "enumerate(DataLoader)"
_SLOWED = 1.1
"""If steps are so many times as long as usually, a GPU's shares are of what they usually take: the
profiler makes starting a kernel slower, and the GPU waits for that. On an H200, steps of 3.2 ms
took 5.8 ms."""
Spans = list[tuple[float, float]]
"""Ranges (from, to) in microseconds, in order and apart from each other."""


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
class Gap:
    """A time in which nothing ran."""

    seconds: float
    after: str
    before: str


@dataclass(frozen=True, slots=True)
class Summary:
    """A trace at a glance. Shares are of the time `of`, 0 to 1."""

    steps: int
    seconds: float
    of: float
    """Seconds: of the whole trace, or those that so many steps usually take (`_SLOWED`)."""
    gpu: bool
    operators: tuple[Operator, ...]
    idle: float
    """The share in which nothing ran: no kernel on the GPU, or no operator on the processor."""
    gaps: tuple[Gap, ...]
    communication: float
    """The share in which ranks exchanged something."""
    hidden: float | None
    """The share of that in which something was computed as well; None without communication."""
    advice: tuple[str, ...]
    """What would help, with the figure that says so: at most three, empty where none carries it."""


def read(run: Path, name: str, usual: float | None = None) -> Summary:
    """The trace `name` in the run folder `run`. `usual`: seconds of a step that is not traced, if
    known. Raises UserError if it is none."""
    with trace_files.readable(name):
        return summary(msgspec.json.decode(trace_files.unpacked(run, name), type=_File).traceEvents,
                       usual)


def summary(events: Iterable[_Range], usual: float | None = None) -> Summary:
    """What these events say. `usual`: as for `read`. Raises UserError if there is no step among
    them."""
    ranges = sorted((e for e in events if e.ph == "X" and e.dur > 0), key=lambda e: e.ts)
    marks = [e for e in ranges if e.cat == "user_annotation" and e.name.startswith("ProfilerStep#")]
    if not marks:
        raise UserError("there is no whole step in the trace")
    begin, end = marks[0].ts, max(e.end for e in marks)
    ranges = [e for e in ranges if begin <= e.ts < end]
    traced = end - begin
    kernels = [e for e in ranges if e.cat in _ON_GPU]
    work = kernels or [e for e in ranges if e.cat == "cpu_op"]
    talk = [e for e in ranges if _communicates(e)]
    # What calls a collective operation waits in it, on the processor, as its caller does.
    computing = without(union(e for e in work if not _communicates(e)),
                        union(e for e in work if e.name.startswith("c10d::")))
    busy, talking = union(work) if kernels else computing, union(talk)
    hidden = length(both(talking, computing)) / length(talking) if talking else None
    own = _own_times(work) if not kernels else [(e, e.dur) for e in kernels]
    worked, usually = length(clip(busy, begin, end)), len(marks) * (usual or inf) * 1e6
    whole = max(usually, worked) if kernels and traced > _SLOWED * usually else traced
    idle = 1 - worked / whole
    communication = length(clip(talking, begin, end)) / whole
    return Summary(len(marks), traced / 1e6, whole / 1e6, bool(kernels), _longest(own), idle,
                   _gaps(work, busy), communication, hidden,
                   _advice(ranges, kernels, traced, whole,
                           idle if usual or not kernels else 0.0,  # else it may be the profiler's
                           communication * (1 - (hidden or 0))))


def _communicates(one: _Range) -> bool:
    if one.cat == "kernel":
        return one.name.startswith(("nccl", "rccl")) or "ncclDevKernel" in one.name
    return one.cat == "user_annotation" and one.name.startswith("gloo:")


def _longest(own: Iterable[tuple[_Range, float]], most: int = 8) -> tuple[Operator, ...]:
    seconds: dict[str, float] = defaultdict(float)
    calls: Counter[str] = Counter()
    for one, time in own:
        seconds[one.name] += time / 1e6
        calls[one.name] += 1
    first = sorted(seconds, key=lambda name: -seconds[name])[:most]
    return tuple(Operator(name, seconds[name], calls[name]) for name in first)


def _own_times(ranges: Sequence[_Range]) -> list[tuple[_Range, float]]:
    """Each range with its time without that of those inside of it on the same thread."""
    own = {id(e): e.dur for e in ranges}
    open_: dict[object, list[_Range]] = defaultdict(list)
    for one in ranges:  # in the order of their beginning
        stack = open_[one.tid]
        while stack and stack[-1].end <= one.ts:
            stack.pop()
        if stack:
            own[id(stack[-1])] -= one.dur
        stack.append(one)
    return [(e, max(own[id(e)], 0.0)) for e in ranges]


def _gaps(work: Sequence[_Range], busy: Spans, most: int = 3) -> tuple[Gap, ...]:
    begin, end = attrgetter("ts"), attrgetter("end")
    apart = sorted(((b - a, a, b) for (_, a), (b, _) in pairwise(busy)),
                   reverse=True)[:most]
    return tuple(Gap(size / 1e6,
                     max((e for e in work if e.end <= a), key=end, default=work[0]).name,
                     min((e for e in work if e.ts >= b), key=begin, default=work[-1]).name)
                 for size, a, b in apart)


def _advice(ranges: Sequence[_Range], kernels: Sequence[_Range], traced: float, whole: float,
            idle: float, exposed: float) -> tuple[str, ...]:
    """What would help, the largest share first. Each rule has its threshold in front of it."""
    def share(*beginnings: str, cat: str) -> float:
        return length(union(e for e in ranges if e.cat == cat and e.name.startswith(beginnings))) \
            / (whole if cat in _ON_GPU else traced)

    found: list[tuple[float, str]] = []

    def rule(least: float, value: float, text: str) -> None:
        if value >= least:
            found.append((value, text.format(f"{value:.0%}")))

    data = share(_LOADER, cat="user_annotation")
    rule(0.2, data, "{} of the time waits for the DataLoader: more num_workers, "
         "persistent_workers, less decoding in the dataset")
    rule(0.2, exposed, "{} of the time goes into communication that nothing hides: fewer exchanges "
         "(no_sync with accumulation, a larger bucket_cap_mb), or gradients in bf16")
    rule(0.25, share("Optimizer.step#", cat="user_annotation") if not kernels else 0.0,
         "{} of the time is the optimizer's: fused=True, or a larger batch")
    reads = share("aten::item", "aten::_local_scalar_dense", cat="cpu_op")
    if kernels:
        rule(0.1, reads, "{} of the time reads a value from the GPU (.item(), .cpu(), a loss that "
             "is printed): read it less often")
        rule(0.1, share("Memcpy HtoD (Pageable", cat="gpu_memcpy"), "{} of the time copies to the "
             "GPU: pin_memory=True in the DataLoader and non_blocking=True")
        if data < 0.2 and median(e.dur for e in kernels) < 20:
            rule(0.3, idle, "for {} of the time the GPU has nothing to do, and half of its kernels "
                 "take less than 20 µs: a larger batch, torch.compile, or CUDA graphs")
    elif data < 0.2:
        rule(0.5, idle - exposed, "for {} of the time no operator runs: Python, or what it waits "
             "for; a larger batch, or torch.compile")
    return tuple(text for _, text in sorted(found, reverse=True)[:3])


# --- ranges -------------------------------------------------------------------------------------

def union(ranges: Iterable[_Range]) -> Spans:
    """The times that at least one of the ranges covers."""
    out: Spans = []
    for one in sorted(ranges, key=lambda e: e.ts):
        if out and one.ts <= out[-1][1]:
            out[-1] = out[-1][0], max(out[-1][1], one.end)
        else:
            out.append((one.ts, one.end))
    return out


def both(first: Spans, second: Spans) -> Spans:
    """The times that both cover."""
    out, i, j = Spans(), 0, 0
    while i < len(first) and j < len(second):
        a, b = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if a < b:
            out.append((a, b))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return out


def without(first: Spans, second: Spans) -> Spans:
    """The times that the first cover and the second do not."""
    edges = [-inf, *(t for span in second for t in span), inf]
    return both(first, list(zip(edges[::2], edges[1::2], strict=True)))


def clip(spans: Spans, begin: float, end: float) -> Spans:
    """What lies between two times."""
    return both(spans, [(begin, end)])


def length(spans: Spans) -> float:
    """Microseconds in all."""
    return sum(b - a for a, b in spans)


# --- in words -----------------------------------------------------------------------------------

def lines(whole: Summary) -> list[str]:
    """The summary for a terminal."""
    what, unit = ("kernel", "GPU") if whole.gpu else ("operator", "processor")
    slowed = "" if whole.of == whole.seconds else \
        f" ({_time(whole.of / whole.steps)} without the profiler: shares are of that)"
    out = [f"{whole.steps} step{'s' * (whole.steps > 1)} in {_time(whole.seconds)}, "
           f"{_time(whole.seconds / whole.steps)} each{slowed}; no {what} on the {unit} for "
           f"{whole.idle:.0%} of it"]
    if whole.hidden is not None:
        out.append(f"communication {whole.communication:.0%} of it, {whole.hidden:.0%} of that "
                   "hidden behind computing")
    out += [f"{_time(one.seconds):>9}  {one.seconds / whole.of:4.0%}  {one.calls:6,}×  "
            f"{_short(one.name)[:100]}" for one in whole.operators]
    out += [f"{_time(gap.seconds):>9}  nothing ran between {_short(gap.after)[:60]} and "
            f"{_short(gap.before)[:60]}" for gap in whole.gaps]
    return out + [f"→ {text}" for text in whole.advice]


def describe(run: Run, rank: int, answer: Trace | None
             ) -> tuple[Path | None, Summary | None, list[str]]:
    """Of what `rank` of `run` has answered: the file, its summary, and the lines for people."""
    if answer is None:
        return None, None, ["no trace: it made no step in that time, or has ended; gpu-engine "
                            f"stacks {run.id} says where it is"]
    if answer.path is None:
        return None, None, [f"no trace: {answer.problem}"]
    path = run.path / answer.path
    try:
        whole = read(run.path, answer.path, _usual(run.events(rank), answer.first))
    except UserError as err:
        return path, None, [str(err)]
    return path, whole, lines(whole)


def _short(name: str) -> str:
    """A kernel's name without what all of torch's have."""
    for part in ("void ", "at::native::", "(anonymous namespace)::"):
        name = name.replace(part, "")
    return name


def _usual(path: Path, first: int, most: int = 10) -> float | None:
    """The median seconds of a rank's last steps before step `first`; None if it tells of none."""
    before = (span for span in steps.newest(path) if span.step < first)
    return steps.median_of(islice(before, most))


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms" \
        if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"
