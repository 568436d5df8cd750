"""Why a run is slow, in a sentence, where the figures carry it. Pure: figures in, verdicts out.

Each rule is one function with its thresholds beside it; `docs/diagnosis.md` tells them with their
sources. A rule that lacks a figure, or has too few steps, says nothing. A processor has no figures
of its memory and clocks, so the rules about devices say nothing of runs on one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median, median_high
from typing import TYPE_CHECKING

from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.devices.records import HARDWARE_REASONS
from gpu_engine.diagnose import steps
from gpu_engine.diagnose.device_times import DeviceTimes, Reading, idle
from gpu_engine.diagnose.steps import NAMES, REST, Parts
from gpu_engine.events.rank_view import RankView

if TYPE_CHECKING:
    from gpu_engine.events import schema

STEPS, SECONDS = 50, 4.0
"""Fewer steps, or less time, than that carry no verdict."""
DATA, WORTH = 0.2, 0.002
"""Input-bound: the share of training that each rank waits for data, at least half as much in each
quarter of the time; and seconds of it in a step."""
BEHIND, LEAST, EXPLAINED, QUARTERS = 0.1, 0.001, 0.8, 4
"""Straggler: how much longer than it the others wait, as a share of a step and in seconds; how much
of that its own parts explain; in how many parts of the time it has to be the same rank."""
SAVING, TIMES = 0.05, 3
"""Saving: its share of all time; in how many spans it was seen. The same number of times a device
has been measured."""
EXCHANGE = 0.2
"""Exchange: its share of a step."""
GARBAGE, NEARLY = 0.05, 0.9
"""Garbage collection: its share of all time, and full ones in a step."""
STALLS, STALLED, ALIKE = 5, 0.1, 0.7
"""Stalls: how many; their share of all time; how many of them after the same number of steps."""
ALONE = 0.1
"""Evaluation: the share of all time for which one rank alone evaluates."""
OWN_PARTS = ("data", "copy", "forward", "backward", "optimizer", REST)


@dataclass(frozen=True, slots=True)
class RankTimes:
    """What the rules know of one rank."""

    rank: int
    spans: tuple[schema.StepTime, ...]
    """Those that can be added up, oldest first."""
    whole: Parts


def of(views: Sequence[RankView], devices: Sequence[DeviceTimes] = ()) -> list[Verdict]:
    """The verdicts on a run whose ranks have these views, and on its devices."""
    ranks = _long_enough(views)
    found = [of_memory(views), throttled(devices),
             another_process(devices)]
    if ranks:
        found += [rule(ranks) for rule in RULES]
        found.append(not_kept_busy([r.whole for r in ranks], devices))
    return [verdict for verdict in found if verdict is not None]


def to_dict(views: Sequence[RankView], devices: Sequence[DeviceTimes] = ()) -> dict[str, object]:
    """For scripts: the verdicts, and each rank's last steps and all of its attempt's."""
    ranks = []
    for view in views:
        last, run = steps.of_last(view), steps.of_run(view)
        if last is not None and run is not None:
            ranks.append({"rank": view.rank, "last": last.to_dict(), "run": run.to_dict()})
    return {"verdicts": [asdict(v) for v in of(views, devices)], "ranks": ranks}


def _long_enough(views: Sequence[RankView]) -> list[RankTimes]:
    """Each rank's times; none if one of them has not told enough."""
    ranks = []
    for view in views:
        if view.process is not None:
            continue
        spans = tuple(steps.usable(view))
        whole = steps.together(view.rank, spans)
        if whole is None or whole.steps < STEPS or whole.seconds < SECONDS:
            return []
        ranks.append(RankTimes(view.rank, spans, whole))
    return ranks


def input_bound(ranks: Sequence[RankTimes]) -> Verdict | None:
    """Every rank waits for its data. If one alone does, the others wait for it: a straggler."""
    waits = [(r.whole.parts["data"], r.whole) for r in ranks]
    if any(seconds is None for seconds, _ in waits):
        return None
    shares = [(seconds or 0.0) / max(whole.training, 1e-9) for seconds, whole in waits]
    a_step = [(seconds or 0.0) / whole.steps for seconds, whole in waits]
    if min(shares) < DATA or min(a_step) < WORTH or not all(
            each and min((p.parts["data"] or 0.0) / max(p.training, 1e-9) for p in each) >= DATA / 2
            for each in _quarters(ranks)):  # not only while workers start, or a cache fills
        return None
    workers = ranks[0].whole.workers
    these = "its only worker is" if workers == 1 else f"its {workers} workers are"
    cure = {None: "let more workers read ahead, or make reading an example cheaper",
            0: "no worker reads ahead: give the loader some (num_workers, train.workers)"}.get(
        workers, f"{these} too slow: more of them, persistent_workers, or less work for each "
                 "example")
    return Verdict(
        "input-bound", f"waiting for data takes {median(shares):.0%} of the training, "
        f"{units.brief(median(a_step))} a step: {cure}",
        {"share": round(median(shares), 4), "seconds_a_step": round(median(a_step), 6)},
        cost=median(shares))


def straggler(ranks: Sequence[RankTimes]) -> Verdict | None:
    """One rank comes last to every exchange of gradients: it waits least, and the others for it."""
    if len(ranks) < 2 or any(r.whole.parts["wait"] is None for r in ranks):
        return None
    last = _comes_last([r.whole for r in ranks])
    if last is None or stalling(ranks) is not None:  # not in each step
        return None
    culprit, gap = last
    for each in _quarters(ranks):
        found = _comes_last(each) if each else None
        if found is None or found[0] != culprit:
            return None
    own = next(r.whole for r in ranks if r.rank == culprit)
    # A few pauses, as for a save after each epoch, are in the mean and are not in each step.
    if own.median is not None and own.training / own.steps - own.median >= gap / 2:
        return None
    others = [r.whole for r in ranks if r.rank != culprit]
    more = {name: (own.a_step(name) or 0.0) - median(o.a_step(name) or 0.0 for o in others)
            for name in OWN_PARTS}
    causes: dict[str, float] = {}  # as few as explain it, the largest first
    for name, seconds in sorted(more.items(), key=lambda item: -item[1]):
        if sum(causes.values()) < EXPLAINED * gap and seconds > 0:
            causes[name] = seconds
    if sum(causes.values()) < EXPLAINED * gap:
        return None
    figures = {"seconds_a_step": round(gap, 6)} | {
        f"{name}_a_step": round(seconds, 6) for name, seconds in causes.items()}
    return Verdict(
        "straggler", f"rank {culprit} makes the others wait {units.brief(gap)} in each step of "
        f"{units.brief(own.seconds / own.steps)}: its {' and '.join(NAMES[c] for c in causes)} "
        f"{'take' if len(causes) > 1 else 'takes'} {units.brief(sum(causes.values()))} longer than "
        "theirs", figures, culprit, gap * own.steps / own.seconds)


def _comes_last(each: Sequence[Parts]) -> tuple[int, float] | None:
    """(the rank that waits least, how many seconds longer in a step the others wait)."""
    waits = {parts.rank: parts.a_step("wait") for parts in each}
    known = {rank: wait for rank, wait in waits.items() if wait is not None}
    if len(known) < len(each):
        return None
    culprit = min(known, key=lambda rank: known[rank])
    gap = median_high([wait for rank, wait in known.items() if rank != culprit]) - known[culprit]
    a_step = median(parts.training / parts.steps for parts in each)
    return (culprit, gap) if gap >= max(BEHIND * a_step, LEAST) else None


def _quarters(ranks: Sequence[RankTimes]) -> Iterator[list[Parts]]:
    """What each rank's time went into, in each quarter of it; nothing if one has no step there."""
    for number in range(QUARTERS):
        each = []
        for rank in ranks:
            begin, end = (len(rank.spans) * i // QUARTERS for i in (number, number + 1))
            each.append(steps.together(rank.rank, rank.spans[begin:end]))
        yield [] if None in each else [parts for parts in each if parts is not None]


def saving(ranks: Sequence[RankTimes]) -> Verdict | None:
    """Training often waits for a checkpoint to be written."""
    found = max(ranks, key=lambda r: r.whole.share("save") or 0.0)
    share, spent = found.whole.share("save") or 0.0, found.whole.parts["save"]
    times = sum((span.save or 0.0) > 0.02 * span.seconds for span in found.spans)
    if share < SAVING or times < TIMES:
        return None
    return Verdict(
        "saving", f"saving and logging take {share:.0%} of the time: save less often "
        "(train.checkpoint_every), or while training goes on (train.checkpoint_async)",
        {"share": round(share, 4), "seconds": round(spent or 0.0, 3)},
        found.rank if len(ranks) > 1 else None, share)


def evaluating(ranks: Sequence[RankTimes]) -> Verdict | None:
    """Evaluations take longer than the training between them, or one rank's keep the others
    waiting: under DDP these make no step without it, wherever they wait."""
    by_time = sorted(ranks, key=lambda r: r.whole.parts["eval"] or 0.0)
    most, found = by_time[-1], by_time[0].whole
    if sum((span.eval or 0.0) > 0.0 for span in most.spans) < TIMES:
        return None
    spent = found.parts["eval"] or 0.0
    alone = (most.whole.share("eval") or 0.0) - (by_time[-2:][0].whole.share("eval") or 0.0)
    if alone >= ALONE and all(r.whole.parts["wait"] is not None for r in ranks):
        only = not any(r.whole.parts["eval"] for r in ranks if r is not by_time[-1])
        does = "alone evaluates" if only else "evaluates for longer than they do"
        return Verdict(
            "evaluation", f"the other ranks wait while rank {most.rank} {does}, {alone:.0%} of the "
            f"time: {'' if only else 'look at its data, '}divide the evaluation among them, or "
            "evaluate less often",
            {"share": round(alone, 4), "seconds": round(alone * most.whole.seconds, 3)},
            most.rank, alone)
    if spent <= found.training:
        return None
    return Verdict(
        "evaluation", f"evaluations take {spent / found.seconds:.0%} of the time, more than the "
        "training itself: evaluate less often (train.eval_every), or on fewer examples",
        {"share": round(spent / found.seconds, 4), "seconds": round(spent, 3)},
        cost=spent / found.seconds)


def exchanging(ranks: Sequence[RankTimes]) -> Verdict | None:
    """Averaging gradients takes a good part of each step, also on the rank that comes last and so
    waits for nothing else."""
    each = [[s.exchange for s in r.spans if s.exchange is not None] for r in ranks]
    if len(ranks) < 2 or not all(each):
        return None
    seconds, whole = min(((median(known), r.whole) for known, r in zip(each, ranks, strict=True)),
                         key=lambda found: found[0])
    a_step = whole.training / whole.steps
    if seconds < max(EXCHANGE * a_step, WORTH):
        return None
    return Verdict(
        "exchange", f"exchanging gradients takes {units.brief(seconds)} of each step of "
        f"{units.brief(a_step)}, beyond what goes on beside the backward pass: larger batches, "
        "several of them a step (batch.accumulate, no_sync), or half the bytes (torch's "
        "fp16_compress_hook)", {"seconds_a_step": round(seconds, 6),
                                "share": round(seconds / a_step, 4)}, cost=seconds / a_step)


def collecting(ranks: Sequence[RankTimes]) -> Verdict | None:
    """Python looks through all objects for garbage in each step."""
    found = max(ranks, key=lambda r: r.whole.gc or 0.0)
    seconds, times = found.whole.gc or 0.0, found.whole.gcs or 0
    share = seconds / found.whole.seconds
    if share < GARBAGE or times < NEARLY * found.whole.steps:
        return None
    return Verdict(
        "garbage", f"garbage collection takes {share:.0%} of the time, {times:,} full ones in "
        f"{found.whole.steps:,} steps, {units.brief(seconds / times)} each: leave out "
        "gc.collect(), or call gc.freeze() before the first step",
        {"share": round(share, 4), "seconds": round(seconds, 3), "times": times},
        found.rank if len(ranks) > 1 else None, share)


def stalling(ranks: Sequence[RankTimes]) -> Verdict | None:
    """A step in so many takes much longer than the others."""
    for rank in sorted(ranks, key=lambda r: -(r.whole.stalled or 0.0)):
        spans = [s for s in rank.spans if s.stalls]
        by_gap = Counter[int]()
        for span in spans:
            by_gap[span.every or 0] += span.stalls or 0
        (every, alike), = by_gap.most_common(1) or [(0, 0)]
        times, whole = sum(by_gap.values()), rank.whole
        longer, usual = whole.stalled or 0.0, whole.median or 0.0
        part = spans[-1].stalled_in if spans else None
        # Others wait where one rank stalls; workers of a loader that is too slow come in turns.
        if every < 2 or times < STALLS or alike < ALIKE * times or part == "wait" \
                or longer < STALLED * whole.seconds or (part == "data" and every == whole.workers):
            continue
        cure = "what its loader or data set does then, in longer intervals or beside training" \
            if part == "data" else "what the script does then (printing, saving, evaluating, " \
            "torch.cuda.empty_cache()) less often"
        return Verdict(
            "stalls", f"every {every} steps one takes {units.brief(longer / times + usual)} and "
            f"not {units.brief(usual)}, {longer / whole.seconds:.0%} of the time, in "
            f"{NAMES.get(part or '', NAMES[REST])}: {cure}",
            {"every": every, "share": round(longer / whole.seconds, 4),
             "seconds": round(longer, 3)}, rank.rank if len(ranks) > 1 else None,
            longer / whole.seconds)
    return None


RULES: tuple[Callable[[Sequence[RankTimes]], Verdict | None], ...] = (
    straggler, input_bound, exchanging, stalling, collecting, evaluating, saving)
"""In the order in which they are told."""


READINGS = 12
"""Fewer readings of a device, a minute of them, carry no verdict."""
FULL = 0.95
"""Memory: the share of the device's that torch has held at once."""
RETRIES, OFTEN = 10, 0.01
"""Memory: how often torch ran out of it, all in all and in a step."""
BUSY, HELD, MOSTLY = 0.5, 0.7, 0.5
"""Throttling: the utilization from which a device's clock matters; the share of its highest clock
below which any reason counts; in how many of the readings."""
OTHERS = 0.1
"""Another process: the share of the device's time that it has, in at least half of the readings."""
EACH, SHORT, ASIDE = 0.9, 0.1, 0.2
"""The process and the GPU: in how many of the steps it is so; the longest step in seconds; the most
of the time that may go into waiting for data and ranks, saving and evaluation."""
IDLE_BY_PYTHON, IDLE_BY_WAITING = 0.3, 0.1
"""For how much of the time the device has nothing to do."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One thing that makes a run slow, or is about to end it."""

    code: str
    """One word, the same in every version."""
    text: str
    """One line for a person: what is slow and what would help."""
    figures: dict[str, float] = field(default_factory=dict)
    """What the text rests on; seconds, bytes and shares."""
    rank: int | None = None
    """The rank that it is about; None: all."""
    cost: float | None = None
    """About the share of the run's time that it takes; None: it is not a matter of time."""


def of_memory(views: Sequence[RankView]) -> Verdict | None:
    for view in views:
        for at, (peak, total) in enumerate(zip(view.gpu_peak, view.gpu_total, strict=False)):
            device = f"rank {view.label}, device {at}" if len(view.gpu_peak) > 1 else \
                f"rank {view.label}"
            retries = (view.gpu_retries[at:at + 1] or [0])[0] or 0
            if retries >= max(RETRIES, OFTEN * (view.at_step or 0)):
                return Verdict(
                    "memory", f"the memory of {device} has run out {retries:,} times, and torch "
                    "had to wait for the GPU to give back what it kept: a smaller batch, or "
                    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
                    {"retries": retries, "peak": peak or 0, "total": total or 0}, view.rank)
            if peak and total and peak >= FULL * total:
                return Verdict(
                    "memory", f"{device} has held {peak / total:.0%} of its device's memory at "
                    f"once, {units.gib(peak)} of {units.gib(total)} GiB: a little more in one "
                    "batch ends the run", {"peak": peak, "total": total}, view.rank)
    return None


def throttled(devices: Sequence[DeviceTimes]) -> Verdict | None:
    found: list[tuple[float, DeviceTimes, list[Reading]]] = []
    for device in devices:
        busy = [r for r in device.readings
                if r.throttle is not None and (r.utilization or 0) >= BUSY]
        held = [r for r in busy if _is_held(r)]
        if len(busy) >= READINGS and len(held) >= MOSTLY * len(busy):
            found.append((len(held) / len(busy), device, held))
    if not found:
        return None
    share, device, held = max(found, key=lambda one: one[0])
    reasons = clean(held[-1].throttle or "", 80)
    figures = {"share": round(share, 4)}
    told = [reasons]
    temperatures, clocks = ([v for r in held if (v := getattr(r, name)) is not None]
                            for name in ("temperature", "clock"))
    if temperatures:
        figures["temperature"] = median(temperatures)
        told.append(f"{median(temperatures):.0f} °C")
    if clocks:
        figures["clock"] = median(clocks)
        told.append(f"{median(clocks):.0%} of its highest clock")
    cure = "look at its cooling" if "hot" in reasons else \
        "nvidia-smi -q -d PERFORMANCE,POWER,CLOCK says more"
    return Verdict("throttling", f"the clock of {device.name} is held down for {share:.0%} of the "
                   f"time ({', '.join(told)}): {cure}", figures,
                   cost=share * (1 - median(clocks)) if clocks else None)


def _is_held(reading: Reading) -> bool:
    """Whether something is wrong: a GPU at its power limit, which most are, is as it should be."""
    reasons = set((reading.throttle or "").split(", ")) - {""}
    return bool(reasons & HARDWARE_REASONS or (
        reasons and reading.clock is not None and reading.clock <= HELD))


def another_process(devices: Sequence[DeviceTimes]) -> Verdict | None:
    """Somebody else computes on a device of the run."""
    found = [(median(known), device) for device in devices
             if len(known := device.known("others")) >= READINGS]
    share, device = max(found, key=lambda one: one[0], default=(0.0, None))
    if device is None or share < OTHERS:
        return None
    return Verdict("another-process", f"processes that are not this run's take {share:.0%} of the "
                   f"time of {device.name}: gpu-engine devices names them",
                   {"share": round(share, 4)}, cost=share)


def not_kept_busy(ranks: Sequence[Parts], devices: Sequence[DeviceTimes]) -> Verdict | None:
    """The GPUs have little to do though nothing is waited for but the process itself."""
    share = idle(devices, READINGS)
    if share is None or not all(map(_is_alone, ranks)):
        return None
    a_step = max(parts.median or 0.0 for parts in ranks)
    figures = {"idle": round(share, 4), "seconds_a_step": a_step}
    waits, behind = ([(getattr(parts, name) or 0) / parts.steps for parts in ranks]
                     for name in ("waited", "caught_up"))
    if min(waits) >= EACH and share >= IDLE_BY_WAITING:
        return Verdict(
            "loss-read", f"training waits for the GPU in {min(waits):.0%} of the steps of "
            f"{units.brief(a_step)}, as loss.item(), float(loss) or printing it does, and the GPU "
            f"then has nothing to do, {share:.0%} of the time in all: read it every 50 steps",
            figures | {"waited": round(min(waits), 4)}, cost=share)
    if min(behind) >= EACH and share >= IDLE_BY_PYTHON:
        return Verdict(
            "python-bound", f"the GPU has nothing to do for {share:.0%} of the time: in steps of "
            f"{units.brief(a_step)}, Python is slower at giving it work than it at doing that. "
            "Larger batches, torch.compile, or a fused optimizer",
            figures | {"caught_up": round(min(behind), 4)}, cost=share)
    return None


def _is_alone(parts: Parts) -> bool:
    """Whether short steps on a GPU wait for nothing that has a rule of its own."""
    aside = [parts.parts[name] for name in ("data", "wait", "save", "eval")]
    return parts.on_device and parts.parts["data"] is not None and parts.median is not None \
        and parts.median <= SHORT and sum(v or 0.0 for v in aside) <= ASIDE * parts.seconds
