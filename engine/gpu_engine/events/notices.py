"""What is told of a run that goes on, and may complete, but does not do what it seems to do: for
each kind its code, the sentence with its numbers, and the lines that would mend it. Pure.

Codes are for programs: one is never given another meaning.

Standard library only: a rank imports this in any environment that has torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..common.units import counted
from .schema import Warning  # relative: see `writer`

APART, ONE_DEVICE, UNDIVIDED = "not-reduced", "one-device", "data-not-divided"
ELSEWHERE = "other-device"
SAME_ORDER = "set-epoch"
NONFINITE = "nonfinite"
CLIPPED_SCALED, REST_DROPPED = "clip-before-unscale", "rest-dropped"
NOT_SAVED, NOT_RECORDED = "not-saved", "not-recorded"
RANK_LOST, NO_BATCH, NOT_FETCHED = "rank-lost", "no-batch", "not-fetched"
UNCHANGED, HOST_MEMORY = "unchanged", "host-memory"
LOWERED, SMALL_DATA = "batch-lowered", "small-data"
NOT_PRINTED, NOT_READ, NO_LIMIT, NO_BEST = "not-printed", "not-read", "no-limit", "no-best"
ORDER = (NOT_FETCHED, RANK_LOST, HOST_MEMORY, NO_BATCH, UNCHANGED, NONFINITE, LOWERED, SMALL_DATA,
         NOT_PRINTED, NO_BEST, NOT_READ, NO_LIMIT, NOT_SAVED, NOT_RECORDED, APART, ELSEWHERE,
         ONE_DEVICE, UNDIVIDED, CLIPPED_SCALED, REST_DROPPED, SAME_ORDER)
"""All of them, what spoils a training most first."""

_GROUP = "torch.distributed.init_process_group()"
_DDP = "model = torch.nn.parallel.DistributedDataParallel(model)"
_CALL = "output = model(x)  # the DistributedDataParallel, not model.module(x)"
_SAMPLER = "loader = DataLoader(data, sampler=DistributedSampler(data))  # no shuffle="
IN_SHELL = "set -eo pipefail  # first in a script of bash: it then ends as what fails in it"


def nonfinite(step: int, rank: int) -> str:
    """A loss is not a finite number."""
    return f"the loss of rank {rank} was not finite at step {step:,}, for the first time"


def failed(rank: int, error: str, step: int | None) -> str:
    """A rank has failed below a command that ended well."""
    at = "" if step is None else f" at step {step:,}"
    return f"rank {rank} failed{at} with {error}, though the command exited with 0"


def gone(steps: Mapping[int, int]) -> str:
    """Nothing tells how these ranks (with their last step) have ended below such a command."""
    who = ", ".join(f"rank {rank} (at step {step:,})" for rank, step in list(steps.items())[:4])
    more = f" and {len(steps) - 4} more" if len(steps) > 4 else ""
    return (f"{who}{more} did not reach the end of the script: killed, or ended by os._exit(), "
            "though the command exited with 0")


def no_batch(examples: int, batch: int) -> Warning:
    """A loader has nothing to give, so that no epoch has a step."""
    return Warning(
        f"a DataLoader gives no batch: it has {counted(examples, 'example')}, "
        f"batch_size={batch:,} and drop_last=True, so an epoch has no step" if examples else
        "a DataLoader gives no batch: it has no examples, so an epoch has no step", NO_BATCH,
        ("loader = DataLoader(data, batch_size=…)  # smaller, or without drop_last=True",)
        if examples else ())


def small_data(examples: int, batch: int, *, first: bool = False) -> Warning:
    """A loader's examples are fewer than its batch would have. `first`: only those of its first
    batch are known."""
    return Warning(f"not every batch has {batch:,} examples: the first has {examples:,}" if first
                   else f"no batch has {batch:,} examples: the data set has {examples:,}",
                   SMALL_DATA)


def examples_of(told: Warning) -> int | None:
    """The examples that `small_data` has told; None: not its words."""
    digits = told.message.rpartition(" ")[2].replace(",", "")
    return int(digits) if digits.isdecimal() and len(digits) < 16 else None


def lowered() -> Warning:
    """A library has answered that memory ran out by a smaller batch."""
    return Warning("memory ran out, and accelerate goes on with a smaller batch than it was told",
                   LOWERED)


def not_saved(why: str) -> Warning:
    """A checkpoint could not be written, for example to a full disk."""
    return Warning(f"checkpoint not written, earlier ones are intact: {why}", NOT_SAVED)


def not_recorded(seconds: float, lost: int) -> Warning:
    """A rank's events could not be written for a while. `lost`: how many."""
    return Warning(f"events could not be written for {seconds:.0f} s (is the disk full?); {lost} "
                   "are missing", NOT_RECORDED)


def not_printed(missing: Sequence[str]) -> Warning:
    """Values that were asked for (run.metrics) were never printed. `missing`: a sentence each."""
    return Warning("; ".join(missing), NOT_PRINTED)


def not_read(why: Sequence[str]) -> Warning:
    """Values that were printed are not recorded, as they are not certain. `why`: of each name."""
    return Warning("run.metrics: not all is recorded. " + "; ".join(why), NOT_READ)


def no_limit(seconds: float) -> Warning:
    """The time of a run (run.limit) was never counted, as it made no step."""
    return Warning(f"run.limit = {seconds:g} s never began: it counts from the first step, and "
                   "none was seen", NO_LIMIT,
                   ("--set run.limit_from=start  # counts from the start of the ranks",))


def no_best(best: str, names: Sequence[str]) -> Warning:
    """The value by which runs are compared (run.best) was never given. `names`: those that were."""
    there = ", ".join(names[:20]) or "none"
    return Warning(f"run.best = {best}: no value of this name was evaluated, logged or printed; "
                   f"there are {there}", NO_BEST)


def apart(world: int, steps: int, *, group: bool, wrapped: bool = False, numbers: int = 0
          ) -> Warning:
    """The ranks train separately. `steps`: how many were seen. `group`: whether they have a process
    group all the same; `wrapped`: and a DistributedDataParallel. `numbers`: how many they have
    exchanged, if any."""
    what = f"fewer numbers than its parameters were exchanged between them, {numbers:,}," \
        if numbers else "nothing was exchanged between them"
    why = f"{what} in {counted(steps, 'step')}" if group else "no process group was made"
    if wrapped:
        why += ", though there is a DistributedDataParallel, as where only its module is called"
    return Warning(
        f"{world} ranks train, each by itself: {why}. Fine if each tries something else",
        APART, (_CALL,) if wrapped else (_DDP, _SAMPLER) if group else (_GROUP, _DDP, _SAMPLER))


def one_device(devices: int) -> Warning:
    """A single process uses one of several GPUs."""
    return Warning(
        f"1 of {devices} devices is used: the script never spreads its model over the others",
        ONE_DEVICE, ("model = torch.nn.DataParallel(model)",))


def elsewhere(there: Sequence[str], held: Sequence[str], ids: str) -> Warning:
    """Processes of the run compute on devices that it does not hold. `there` and `held`: labels;
    `ids`: those of the former, as --devices takes them."""
    return Warning(
        f"the run computes on {', '.join(there)}, but holds {', '.join(held)}", ELSEWHERE,
        (f'device = "cuda:0"  # {held[0]}, where nothing in the script sets CUDA_VISIBLE_DEVICES',
         f"gpu-engine run --devices {ids} …  # holds what the script computes on"))


def undivided(world: int, examples: int, sampler: str) -> Warning:
    """Each rank trains on all examples. `sampler`: the class of the loader's."""
    return Warning(
        f"each of {world} ranks loads all {counted(examples, 'example')}: the loader's {sampler} "
        f"does not divide them, so an epoch takes each example {world} times",
        UNDIVIDED, (_SAMPLER,))


def same_part(world: int, rank: int, replicas: int) -> Warning:
    """Ranks train on the same part of the examples: that of `rank` among `replicas`."""
    return Warning(
        f"more than one of {world} ranks loads the same part of the examples: DistributedSampler "
        f"has rank={rank} and num_replicas={replicas} on each of them", UNDIVIDED,
        (_SAMPLER + ", rank= or num_replicas=",))


def unchanged(steps: int, name: str, parameters: int, *, no_gradient: bool) -> Warning:
    """No optimizer has changed a parameter. `name`: the class of the last one, which has so many
    parameters. `no_gradient`: as none of them has ever had a gradient; else the rate was 0."""
    if no_gradient:
        return Warning(
            f"no parameter has changed in {counted(steps, 'step')}: none of the {parameters:,} "
            f"that {name} holds has a gradient, so they are not the ones that backward() reaches",
            UNCHANGED,
            (f"optimizer = torch.optim.{name}(model.parameters())  # of the model that is trained, "
             "after it was copied, moved or divided",))
    return Warning(
        f"no parameter has changed in {counted(steps, 'step')}: the learning rate of {name} is 0",
        UNCHANGED,
        (f"optimizer = torch.optim.{name}(model.parameters(), lr=1e-3)  # and a schedule that "
         "does not stay at 0",))


def memory_fills(grown: int, seconds: float, left: int) -> Warning:
    """A rank's memory has grown by so many bytes in so many seconds, and so many are left."""
    return Warning(
        f"host memory is nearly full: the rank has grown by {grown / 2**30:.1f} GiB in "
        f"{seconds:.0f} s, and {left / 2**30:.1f} GiB are left, at this pace for "
        f"{left * seconds / grown:.0f} s; then the kernel kills a process", HOST_MEMORY,
        ("total += loss.item()  # losses.append(loss) keeps the graph of each loss",))


def clipped_scaled(most: float, scale: float) -> Warning:
    """Gradients are clipped to `most` while they are multiplied by a GradScaler's `scale`."""
    return Warning(
        f"gradients are clipped to {most:g} while the GradScaler scales them by {scale:g}: at "
        f"most {most / scale:.2g} is left of their norm or value", CLIPPED_SCALED,
        ("scaler.unscale_(optimizer)  # before the gradients are clipped",))


def rest_dropped(rest: int, calls: int) -> Warning:
    """The last calls of backward() in each epoch, too few for a step of `calls`, are lost."""
    return Warning(
        f"gradients of the last batches of an epoch are lost: a step accumulates {calls} calls of "
        f"backward(), and {rest} that were left were cleared when the next epoch began, twice",
        REST_DROPPED, ("if (i + 1) % accumulate == 0 or i + 1 == len(loader): optimizer.step()",))


def same_order(epochs: int, examples: int) -> Warning:
    """A DistributedSampler shuffles alike in each epoch."""
    return Warning(
        f"{epochs} epochs had the same order of their {examples:,} examples: "
        "DistributedSampler.set_epoch was not called between them", SAME_ORDER,
        ("sampler.set_epoch(epoch)  # first in each epoch, before the loader is iterated over",))
