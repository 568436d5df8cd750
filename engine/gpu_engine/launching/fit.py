"""The largest batch that a device trains: real steps in throwaway runs.

Two small sizes are tried; the memory of both is a line, which predicts the largest. That is tried,
and what lies between the largest that fits and the least that does not is halved until they are
near. `gpu-engine fit` makes the runs.
"""

from __future__ import annotations

import json
import math
import resource
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpu_engine.common import paths, units
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import json_inside, write_json
from gpu_engine.devices.records import Device
from gpu_engine.events import notices
from gpu_engine.events.schema import Event, Memory, Step, Warning
from gpu_engine.plan import own_command
from gpu_engine.plan.batch import Batch
from gpu_engine.spec.host_names import SLURM, HostDevices
from gpu_engine.spec.schema import RunSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_engine.runs.folder import State
    from gpu_engine.runs.follow import Follower

STEPS = 3
"""Of a trial at least: it ends with the first look at its memory after them."""
_NO_END = 1 << 30
_LONGEST = 3600.0
"""Seconds from the first step on after which a trial ends by itself, should nobody be there to end
it."""
FIRST, SECOND = 4, 16
"""Examples per GPU that are tried first."""
_MOST = 20
"""Trials."""
_NEAR = 0.95
"""The largest that fits is this share of the least that does not, at least."""
_SURELY, _GROWN = 1 << 16, 1.05
"""From this size on memory has to be so many times that of the smallest."""
_FAR = 16
"""A size is at most so many times the largest that was seen to fit: a line through two small ones
may point anywhere."""
_FULL = 0.95
"""The share of the memory that the line may reach."""
_KNEE = 0.95
"""The knee is the least size with this share of the best rate."""


@dataclass(frozen=True, slots=True)
class Trial:
    """How one size did."""

    size: int
    """Examples per GPU in one forward pass, as they were."""
    fits: bool
    memory: int | None = None
    """Bytes at the peak, of the rank that used most; None: not known."""
    samples_per_s: float | None = None
    """Examples a second of all ranks; of a script its steps a second times `size`, for each."""
    why: str | None = None
    """Why it does not fit."""
    examples: int | None = None
    """`size`, where more were asked for and no batch has so many; None: there were as many."""


class NoStep(UserError):
    """A trial has completed, and nothing is known of its size."""


def search(run: Callable[[int], Trial], limit: int | None) -> list[Trial]:
    """Try sizes by `run` until the largest is known to `_NEAR`, or to one step of `rounded`; until
    a batch is not as large as was asked for, or memory does not grow. `limit`: the bytes that a
    rank may use; None: not known. Returns the trials in their order."""
    trials: list[Trial] = []
    size = FIRST
    while len(trials) < _MOST:
        try:
            trials.append(run(size))
        except NoStep as err:
            if not any(t.fits for t in trials):
                raise
            # As where the data set is smaller, and its incomplete batch is dropped.
            trials.append(Trial(size, False, why=str(err)))
        good = sorted((t for t in trials if t.fits), key=lambda t: t.size)
        bad = least_bad(trials)
        if not good:
            if size == 1:
                break
            size = 1
        elif trials[-1].examples is not None or (bad is None and _flat(good)):
            break
        elif bad is None and len(good) == 1:
            size = SECOND
        else:
            largest = good[-1].size
            least = _little_more(largest)
            if bad is not None and bad.size <= least:
                break
            size = rounded(predicted(good[-2], good[-1], limit)) if len(good) > 1 else 0
            if size <= largest:
                # The line says that it is full, which a little more shows. If that fits, it lies.
                lied = len(good) > 1 and largest <= _little_more(good[-2].size)
                size = rounded(round(largest * 1.5)) if lied and bad is None else least
            if bad is not None and (size >= bad.size or len(trials) - trials.index(bad) > 2):
                # The line is wrong: between the two, by their ratio.
                size = max(step_up(largest), rounded(math.isqrt(largest * bad.size)))
    return trials


def _little_more(size: int) -> int:
    """The least size that is worth a trial where `size` fits."""
    return max(step_up(size), rounded(math.ceil(size / _NEAR)))


def least_bad(trials: Sequence[Trial]) -> Trial | None:
    """The smallest that does not fit."""
    return min((t for t in trials if not t.fits), key=lambda t: t.size, default=None)


def _flat(good: Sequence[Trial]) -> bool:
    """Whether memory has not grown, far beyond any doubt of its measure."""
    least, most = good[0].memory, good[-1].memory
    return good[-1].size >= _SURELY and (least is None or most is None or most < _GROWN * least)


def verdict(trials: Sequence[Trial], unit: str) -> str:
    """What is known of the largest size, where one fits: "fits: up to 48 per GPU; 56 does not: why"
    and whatever is not known."""
    best = max((t for t in trials if t.fits), key=lambda t: t.size)
    text = f"fits: up to {largest(trials):,} per {unit}"
    if best.examples is not None:
        return f"{text}; a larger batch was never made: the largest had " \
            f"{units.counted(best.examples, 'example')}"
    if bad := least_bad(trials):
        return f"{text}; {bad.size:,} does not: {bad.why}"
    if _flat([t for t in trials if t.fits]):
        return f"{text}, the largest that was tried: memory does not grow with it, so batches " \
               "may not be as large as they were asked to be"
    return f"{text}, the largest that was tried"


def largest(trials: Sequence[Trial]) -> int | None:
    """Examples per GPU of the largest batch that was trained; None: no size fits."""
    return max((t.size for t in trials if t.fits), default=None)


def predicted(small: Trial, large: Trial, limit: int | None) -> int:
    """The size at which the line through two trials reaches the limit, at most `_FAR` times the
    larger one; four times the larger one where memory or limit is not known."""
    if limit is None or small.memory is None or large.memory is None:
        return 4 * large.size
    slope = (large.memory - small.memory) / (large.size - small.size)
    room = limit * _FULL - large.memory
    return min(_FAR * large.size, large.size + math.floor(room / slope)) if slope > 0 \
        else _FAR * large.size


def step_up(size: int) -> int:
    """The next size that `rounded` gives."""
    return size + 1 if size < 16 else size // 8 * 8 + 8


def rounded(size: int) -> int:
    """A multiple of eight from 16 on, as tensor cores like it."""
    return max(1, size if size < 16 else size // 8 * 8)


def knee(trials: Sequence[Trial]) -> Trial | None:
    """The least size that trains nearly as fast as any; None: no rate is known."""
    known = [t for t in trials if t.fits and t.samples_per_s]
    best = max((t.samples_per_s or 0.0 for t in known), default=0.0)
    return min((t for t in known if (t.samples_per_s or 0.0) >= _KNEE * best),
               key=lambda t: t.size, default=None)


def proposal(batch: Batch, most: int) -> Batch | None:
    """The same global batch with at most `most` examples per GPU in a forward pass, and as few
    accumulated as that takes. None: no size divides it."""
    share = batch.global_size // batch.replicas
    size = next((n for n in range(min(most, share), 0, -1) if share % n == 0), None)
    return None if size is None else Batch(size, "per_gpu", share // size, batch.replicas,
                                           batch.global_size, size)


def require_triable(spec: RunSpec) -> None:
    """Raises UserError where nothing can be tried for `spec`."""
    if any(host.partition(":")[0] == SLURM for host in spec.devices.hosts or ()):
        raise UserError("fit tries the devices of the machine that it runs on: on a node of Slurm, "
                        "srun --gpus=1 --pty gpu-engine fit …")
    words = spec.task.command
    if words is not None and "batch.per_gpu" not in own_command.used(words):
        raise UserError("the command is not told the batch: write {batch.per_gpu} where it takes "
                        "one")
    there = [HostDevices.parse(entry) for entry in spec.devices.hosts or ()]
    if spec.parallel.nodes > 1 or (len(there) > 1 and spec.devices.pick is None):
        raise UserError("fit tries the devices of one machine: name one host, or run gpu-engine "
                        "fit on each")
    if any(i.startswith("cpu:") for entry in there for i in entry.ids):
        raise UserError("only the machine that fit runs on can limit the memory of CPU slots: type "
                        f"gpu-engine fit on {there[0].host}")


def trial_spec(spec: RunSpec, size: int) -> RunSpec:
    """The spec of a throwaway run. The devices are held by whoever tries."""
    return replace(
        spec, name=f"fit {size} {spec.name}"[:80],
        batch=replace(spec.batch, size=size, meaning="per_gpu", accumulate=1),
        devices=replace(spec.devices, share=True),
        train=replace(spec.train, steps=_NO_END, epochs=None, checkpoint_every=0, eval_every=0,
                      restarts=0, best=None)
        if spec.task.command is None else spec.train,
        run=replace(spec.run, limit=_LONGEST, limit_from="step"))


class Progress:
    """What the ranks of a trial have shown of it."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._began, self._stepped, self._measured = set[int](), set[int](), set[int]()
        self.lowered: str | None = None
        """That the script has taken a smaller batch, in words."""
        self.examples: int | None = None
        """How many there are, where that is fewer than a batch would have."""

    def fold(self, rank: int, event: Event) -> None:
        """Take in the events of a rank, in the order of its file."""
        if isinstance(event, Step):
            # Quick steps all come in one event, and how fast they are is known from the second.
            if event.step >= STEPS and rank in self._began:
                self._stepped.add(rank)
            self._began.add(rank)
        elif isinstance(event, Memory) and rank in self._stepped:
            self._measured.add(rank)
        elif isinstance(event, Warning) and event.code == notices.LOWERED:
            self.lowered = event.message
        elif isinstance(event, Warning) and event.code == notices.SMALL_DATA:
            self.examples = notices.examples_of(event)

    @property
    def done(self) -> bool:
        """Whether nothing more will be shown: each rank's memory was measured after its steps, or
        the batch is not the one that was asked for."""
        return self.lowered is not None or len(self._measured) == self._ranks


def outcome(size: int, progress: Progress, state: State, follower: Follower, rate: float | None,
            limit: int | None = None) -> Trial:
    """What came of a trial that has ended; `rate`: the examples a second that its ranks have told;
    `limit`: the bytes that a rank may use on CPU slots. Raises UserError where nothing is known of
    it."""
    views = list(follower.ranks.values())
    peaks = [most for view in views if (most := max(
        (p for p in view.gpu_peak if p is not None), default=view.rss_peak)) is not None]
    memory = max(peaks, default=None)
    if progress.lowered is not None:
        return Trial(size, False, memory, why=progress.lowered)
    if not progress.done and state.state == "completed" \
            and not any(view.stepped for view in views):
        raise NoStep(f"the trial of {size:,} completed, and no step of it was seen")
    # One that has come to its own end has trained all its steps, measured or not.
    if not progress.done and state.state != "completed":
        return Trial(size, False, memory, why=state.cause.line if state.cause is not None else
                     state.reason or f"it ended before step {STEPS}")
    # What `limited` lets through may still be more: what Python and torch map of their files counts
    # here alone.
    if limit is not None and memory is not None and memory > limit:
        return Trial(size, False, memory, why=f"a rank used {units.size(memory)}; it may use "
                                              f"{units.size(limit)}")
    rates = [view.steps_per_s for view in views if view.steps_per_s]
    made = progress.examples or size
    return Trial(made, True, memory, rate or (made * sum(rates) if rates else None),
                 examples=progress.examples)


@contextmanager
def limited(memory: int | None) -> Iterator[None]:
    """What is started inside, and all that it starts, may use so many bytes (RLIMIT_DATA: heap and
    private mappings), so that a size is really tried."""
    if memory is None:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (memory, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


_KEPT, _MOST_KEPT = "fits.json", 500


def _key(spec: RunSpec, devices: Sequence[Device]) -> str:
    """What a size was found for: what is trained and how, and on which cards."""
    task = spec.task
    return json.dumps([task.command or [task.use, sorted(task.params.items())], spec.amp.dtype,
                       spec.parallel.mode, sorted({"cpu" if d.is_cpu else d.name
                                                   for d in devices})], default=str)


def remember(spec: RunSpec, devices: Sequence[Device], largest: int, memory: int | None) -> None:
    """Keep what was found, in `fits.json` of the home. `memory`: the limit on CPU slots."""
    kept = _kept()
    kept.pop(_key(spec, devices), None)
    kept[_key(spec, devices)] = {"largest": largest, "at": time.time(), "memory": memory}
    write_json(paths.home() / _KEPT, dict(list(kept.items())[-_MOST_KEPT:]))


def known(spec: RunSpec, devices: Sequence[Device]) -> tuple[int, str] | None:
    """The largest size per GPU that was found for this, and that in words: "fits: up to 48 per GPU
    (tried 3 h ago)"."""
    found = _kept().get(_key(spec, devices))
    if not isinstance(found, dict):
        return None
    largest, at, memory = found.get("largest"), found.get("at"), found.get("memory")
    if not (isinstance(largest, int) and isinstance(at, int | float)):
        return None
    within = f" within {units.size(memory)}" if isinstance(memory, int) else ""
    unit = "slot" if isinstance(memory, int) else "GPU"
    return largest, f"fits: up to {largest:,} per {unit}{within} " \
                    f"(tried {units.ago(time.time() - at)})"


def _kept() -> dict[str, Any]:
    found = json_inside(paths.home(), _KEPT)
    return found if isinstance(found, dict) else {}


def advice(spec: RunSpec, trials: Sequence[Trial]) -> str:
    """What would do where not even one example fits."""
    least = min(trials, key=lambda t: t.size)
    ways = [] if spec.amp.dtype != "off" else ["amp.dtype=bf16 halves the activations"]
    ways += ["recomputing them in the backward pass (torch.utils.checkpoint)",
             "a smaller model or shorter input"]
    return f"not even {least.size} per device trains: {least.why}. Where it is memory, this " \
           f"helps: {'; '.join(ways)}"
