"""The rules about devices: their memory, their clocks, who else uses them, and whether the process
keeps them busy. Pure. `docs/diagnosis.md` tells their sources.

A processor has none of these figures, so nothing is said of runs on one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.devices.records import HARDWARE_REASONS
from gpu_engine.diagnose.device_times import DeviceTimes, Reading, idle
from gpu_engine.diagnose.steps import Parts
from gpu_engine.events.rank_view import RankView

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
