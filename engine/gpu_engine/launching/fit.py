"""The largest batch that a device trains: real steps in throwaway runs.

Two small sizes are tried; the memory of both is a line, which predicts the largest. That is tried,
halved while it runs out, and grown while it does not. `gpu-engine fit` makes the runs.
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
from gpu_engine.events.schema import Event, Memory, Step
from gpu_engine.plan import own_command
from gpu_engine.plan.batch import Batch
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
_MOST = 10
"""Trials."""
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
    """Examples per GPU in one forward pass."""
    fits: bool
    memory: int | None = None
    """Bytes at the peak, of the rank that used most; None: not known."""
    samples_per_s: float | None = None
    """Examples a second of all ranks."""
    why: str | None = None
    """Why it does not fit."""


def search(run: Callable[[int], Trial], limit: int | None) -> list[Trial]:
    """Try sizes by `run` until the largest is found. `limit`: the bytes that a rank may use; None:
    not known, and each size is four times the one before. Returns the trials in their order."""
    trials: list[Trial] = []
    size, grown = FIRST, False
    while len(trials) < _MOST:
        trials.append(run(size))
        good = sorted((t for t in trials if t.fits), key=lambda t: t.size)
        bad = min((t.size for t in trials if not t.fits), default=None)
        if not good:
            if size == 1:
                break
            size = 1 if size == FIRST else size // 2
            continue
        largest = good[-1].size
        if bad is None and len(good) == 1:
            size = SECOND
        elif bad is None:
            # Where the line says that it is full, half as much more shows whether that is so.
            wanted = rounded(predicted(good[-2], good[-1], limit))
            size = wanted if wanted > largest else rounded(round(largest * 1.5))
        elif rounded(bad // 2) > largest:
            size = rounded(bad // 2)
        elif grown or bad - largest <= 1:
            break
        else:
            size, grown = rounded((largest + bad) // 2), True
        if any(t.size == size for t in trials):
            break
    return trials


def predicted(small: Trial, large: Trial, limit: int | None) -> int:
    """The size at which the line through two trials reaches the limit, at most `_FAR` times the
    larger one; four times the larger one where memory or limit is not known."""
    if limit is None or small.memory is None or large.memory is None:
        return 4 * large.size
    slope = (large.memory - small.memory) / (large.size - small.size)
    room = limit * _FULL - large.memory
    return min(_FAR * large.size, large.size + math.floor(room / slope)) if slope > 0 \
        else _FAR * large.size


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
    words = spec.task.command
    if words is not None and "batch.per_gpu" not in own_command.used(words):
        raise UserError("the command is not told the batch: write {batch.per_gpu} where it takes "
                        "one")
    if spec.devices.hosts or spec.parallel.nodes > 1:
        raise UserError("fit tries the devices of one machine: run gpu-engine fit on each")


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
    """Whether a trial has shown what it was for."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._stepped, self._measured = set[int](), set[int]()

    def fold(self, rank: int, event: Event) -> None:
        """Take in the events of a rank, in the order of its file."""
        if isinstance(event, Step) and event.step >= STEPS:
            self._stepped.add(rank)
        elif isinstance(event, Memory) and rank in self._stepped:
            self._measured.add(rank)

    @property
    def done(self) -> bool:
        """Whether each rank's memory was measured after its steps."""
        return len(self._measured) == self._ranks


def outcome(size: int, fits: bool, state: State, follower: Follower, rate: float | None) -> Trial:
    """What came of a trial that has ended."""
    views = list(follower.ranks.values())
    peaks = [most for view in views if (most := max(
        (p for p in view.gpu_peak if p is not None), default=view.rss_peak)) is not None]
    why = None if fits else (state.cause.line if state.cause is not None else
                                state.reason or f"it ended before step {STEPS}")
    return Trial(size, fits, max(peaks, default=None), rate if fits else None, why)


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
