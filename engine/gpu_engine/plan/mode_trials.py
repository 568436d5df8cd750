"""One global batch under each mode of one machine: the specs of such trials, and what came out.

DataParallel divides the batch that it is given among its devices, DDP takes one for each device. So
the modes can only be compared if every trial has the same global batch; then they also train the
same, up to the order in which numbers are added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpu_engine.common.errors import Problem, SpecError
from gpu_engine.devices.records import Inventory
from gpu_engine.plan.batch import batch_of
from gpu_engine.spec import modes
from gpu_engine.spec.modes import Mode
from gpu_engine.spec.schema import BatchSpec, DevicesSpec, ParallelSpec, RunSpec

WARM_UP = 0.2
"""The share of the steps, at the beginning, that the rate leaves out."""
APART = 1e-3
"""Relative difference of two losses up to which they count as the same. fp32 differs by some 1e-6
after a few steps, by more where training is unstable; a wrong batch, rate or seed by far more."""
APART_HALF = 5e-2
"""The same with AMP, whose numbers have three digits."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One mode that is to be tried."""

    mode: str
    spec: RunSpec


@dataclass(frozen=True, slots=True)
class Result:
    """What a trial gave. None: not known."""

    mode: str
    devices: int
    seconds_a_step: float | None
    samples_per_s: float | None
    """Of all devices together."""
    memory: int | None
    """Bytes: the most that torch had allocated on one GPU; on the processor, the largest rank's."""
    losses: Mapping[int, float]
    """Step → loss of the global batch."""
    problem: str | None = None
    """Why it failed."""


def trials(spec: RunSpec, inventory: Inventory, steps: int) -> tuple[list[Trial], dict[str, str]]:
    """A trial for each mode of one machine, and mode → why it can't be tried here. `spec` names its
    devices. Raises SpecError for a batch that is not known or can't be divided, or for a spec that
    is not of one machine."""
    ids = spec.devices.ids or []
    mode = modes.get(spec.parallel.mode)
    if spec.task.command is not None:
        raise SpecError([Problem("task.command", spec.task.command,
                                 "a command of your own decides its mode itself; modes are "
                                 "compared for a task (task.use)")])
    if spec.devices.hosts is not None or mode.several_nodes:
        raise SpecError([Problem("parallel.mode", spec.parallel.mode,
                                 "modes are compared on one machine: choose its devices and "
                                 "parallel.mode=ddp")])
    if len(ids) < 2:
        raise SpecError([Problem("devices.ids", ids, "name two devices or more: on one there is "
                                                     "nothing to compare")])
    batch = batch_of(spec, mode.replicas(len(ids), 1))
    if batch is None:
        raise SpecError([Problem("batch.size", spec.batch.size,
                                 f"can't be divided among {len(ids)} devices")])
    out: list[Trial] = []
    left_out: dict[str, str] = {}
    for tried in modes.every():
        if tried.several_nodes:
            continue
        if tried.needs_gpus and inventory.is_cpu:
            left_out[tried.name] = f"{tried.label} needs GPUs"
        else:
            out.append(Trial(tried.name, _spec(spec, tried, ids, batch.global_size, steps)))
    return out, left_out


def _spec(spec: RunSpec, mode: Mode, ids: Sequence[str], size: int, steps: int) -> RunSpec:
    kept = {k: getattr(spec.parallel, k) for k in mode.keys}
    return replace(
        spec, name=f"{spec.name[:60]} {mode.name}",
        devices=DevicesSpec(list(ids[:mode.most_devices]), share=spec.devices.share),
        parallel=ParallelSpec(mode=mode.name, **kept),
        batch=BatchSpec(size, "global", spec.batch.accumulate),
        train=replace(spec.train, steps=steps, epochs=None, checkpoint_every=0, eval_every=0,
                      restarts=0))


def rate(times: Sequence[tuple[float, int]], steps: int) -> float | None:
    """Seconds a step, from (Unix seconds, step) of rank 0's step events, without the warm-up; None
    from fewer than two events behind it."""
    late = [point for point in times if point[1] >= steps * WARM_UP]
    if len(late) < 2 or late[-1][0] <= late[0][0] or late[-1][1] <= late[0][1]:
        return None
    return (late[-1][0] - late[0][0]) / (late[-1][1] - late[0][1])


def furthest_apart(first: Mapping[int, float], other: Mapping[int, float]) -> float | None:
    """The largest relative difference of the losses of a step; None without a step in common."""
    both = [(first[step], other[step]) for step in first.keys() & other.keys()]
    return max((abs(a - b) / max(abs(a), abs(b), 1e-12) for a, b in both), default=None)


def efficiency(one: Result, several: Result) -> float | None:
    """Samples per second for each device, as a share of what one device alone does."""
    if not one.samples_per_s or several.samples_per_s is None:
        return None
    return several.samples_per_s / several.devices / (one.samples_per_s / one.devices)


def verdicts(results: Sequence[Result], amp: bool) -> tuple[list[str], bool]:
    """What the results mean, a sentence each, the first result being one device's; and whether
    all trained, and the same."""
    one, *others = results
    out: list[str] = []
    good = all(r.problem is None for r in results)
    labels = {m.name: m.label for m in modes.every()}
    for several in others:
        name = labels[several.mode]
        if one.samples_per_s and several.samples_per_s is not None:
            times = several.samples_per_s / one.samples_per_s
            out.append(f"{name} on {several.devices} devices is {times:.2f} × as fast as one "
                       "device" + (": slower than one" if times < 1 else ""))
        apart = furthest_apart(one.losses, several.losses)
        if apart is None:
            good = False
            if several.problem is None and one.problem is None:
                out.append(f"{name}: no losses of the same step were recorded, so whether it "
                           "trains the same is not known; try fewer steps")
            continue
        same = apart <= (APART_HALF if amp else APART)
        good &= same
        out.append(f"{name} trains the same as one device: its losses differ by {apart:.1g} at "
                   "most (relative)" if same else
                   f"{name} does NOT train the same as one device: its losses differ by up to "
                   f"{apart:.1g} (relative)")
    return out, good
