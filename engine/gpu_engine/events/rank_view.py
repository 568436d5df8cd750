"""What the events of one rank say about it so far. `view` folds them into it."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from gpu_engine.common import units
from gpu_engine.events import schema, writer

TIMES = 100
"""Step events whose times are kept, for the rate."""
SPANS = 60
"""How many `StepTime` events are kept: one to ten minutes."""
GPU_MEMORY = ("gpu_allocated", "gpu_reserved", "gpu_peak", "gpu_total", "gpu_retries")
COUNTS = ("caught_up", "waited", "gc", "gcs", "stalls", "stalled")
"""The fields of `StepTime` that are added up beside its parts."""
ALWAYS = ("data", "forward", "wait")
"""Parts that are known of every step once they are known: there are none of the others in most."""


@dataclass(slots=True)
class RankView:
    """The latest that is known about one rank. None: not known (yet)."""

    rank: int
    local_rank: int | None = None
    node: int | None = None
    pid: int | None = None
    started: int | None = None
    """When its process started, in clock ticks since boot."""
    began: float | None = None
    """When it began this attempt, Unix seconds."""
    attempt: int = 1
    as_rank: int | None = None
    """The rank that this process trains as, if another process of the run trains as the same."""
    process: int | None = None
    """The number of this process among those, from 2; None: the first, or the only one."""
    training: int | None = None
    """The number of this training in the process, from 2; None: the first, or the only one."""
    training_from: int | None = None
    """How many steps came before this training."""
    training_name: str | None = None
    """The name of its optimizer."""
    devices: list[str] = field(default_factory=list)
    phase: str | None = None
    phase_since: float | None = None
    """When the phase began, Unix seconds."""
    written: int | None = None
    """How many bytes of the current checkpoint are written; None: none is being written."""
    to_write: int | None = None
    """About how many bytes that checkpoint will have."""
    detail: str | None = None
    """What it is doing or waiting for, if its phase says too little."""
    progressed: float | None = None
    """When `written` or `detail` last changed, Unix seconds."""
    beat: float | None = None
    """The time of the rank's last event, Unix seconds."""
    step: int | None = None
    """The last step of which there is an event."""
    at_step: int | None = None
    """The last step that any event names, heartbeats included."""
    stepped: bool = False
    """Whether a step of this attempt is done. The time before the first step has no limit."""
    epoch: int | None = None
    loss: float | None = None
    """The last that is known."""
    lr: float | None = None
    samples_per_s: float | None = None
    """Of this rank alone."""
    data_wait: float | None = None
    skipped: int | None = None
    gpu_allocated: tuple[int | None, ...] = ()
    gpu_reserved: tuple[int | None, ...] = ()
    gpu_peak: tuple[int | None, ...] = ()
    """Bytes, one entry per device, as the two before and the next."""
    gpu_total: tuple[int | None, ...] = ()
    gpu_retries: tuple[int | None, ...] = ()
    """How often each device's memory ran out and torch tried again; empty: never, or not known."""
    rss: int | None = None
    rss_peak: int | None = None
    evaluations: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    checkpoint: str | None = None
    checkpoint_step: int | None = None
    warnings: list[str] = field(default_factory=list)
    error: schema.Error | None = None
    """The first of this attempt."""
    stands: schema.Stands | None = None
    """Where it is, if it has made no step for a while."""
    stood: float = 0.0
    """Seconds of the longest time without a step and without a sign of work that has ended by
    itself, as a wait for an answer over a socket."""
    quiet: str | None = None
    """What its process does, as `schema.Quiet` says it, while nothing comes from it."""
    trace: schema.Trace | None = None
    """The last that was asked for."""
    ended: bool = False
    """Whether it has written its end event itself."""
    exit: int | None = None
    """The status with which its script has left by os._exit."""
    outcome: str | None = None
    """completed | stopped | failed, once it has ended."""
    total_steps: int | None = None
    steps_per_epoch: int | None = None
    epochs: int | None = None
    first_step: int = 0
    examples: int | None = None
    dropped: int | None = None
    step_times: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=TIMES))
    """(Unix seconds, step) of the last step events, oldest first, to work out the rate."""

    spans: deque[schema.StepTime] = field(default_factory=deque)
    """What the time of this attempt's steps went into: its last events, oldest first. The first
    stands for all that were before the others."""

    @property
    def busy(self) -> str:
        """What it is doing, in words: "backward", "checkpoint, 1.2 GiB of 4.0 GiB written"; "" if
        that is not known."""
        words = [self.phase or ""]
        if self.written is not None:
            of = f" of {units.size(self.to_write)}" if self.to_write is not None else ""
            what = "" if self.phase == "checkpoint" else " of a checkpoint"
            words.append(f"{units.size(self.written)}{of}{what} written")
        if self.detail:
            words.append(self.detail)
        return ", ".join(filter(None, words))

    @property
    def over(self) -> bool:
        """Whether its training has ended, though its process may go on, as with an upload."""
        return self.phase == "done" or self.outcome is not None

    @property
    def saving(self) -> bool:
        """Whether it is writing a checkpoint."""
        return self.phase == "checkpoint" or self.written is not None

    @property
    def label(self) -> str:
        """The rank for people: "3", or "0.2" for the second process that trains as rank 0."""
        return str(self.rank) if self.process is None else f"{self.as_rank}.{self.process}"

    @property
    def steps_per_s(self) -> float | None:
        """Steps per second over the last half minute or so; None before the second step event."""
        if len(self.step_times) < 2:
            return None
        last = self.step_times[-1]
        # They are in order of time, and may be more than half a minute apart. This is asked often.
        first = self.step_times[min(bisect_left(self.step_times, (last[0] - 30, -1)),
                                    len(self.step_times) - 2)]
        return (last[1] - first[1]) / (last[0] - first[0]) if last[0] > first[0] else None

    def to_dict(self) -> dict[str, object]:
        """For scripts: every field except `step_times` and `spans`, with the error as in its
        line."""
        out = asdict(self)
        del out["step_times"], out["spans"]
        out |= {name: writer.to_dict(event) for name in ("error", "stands", "trace")
                if (event := getattr(self, name)) is not None}
        return out

    def spent(self, events: Iterable[schema.StepTime]) -> None:
        """Note what further steps' time went into."""
        self.spans += events
        while len(self.spans) > SPANS:
            self.spans.appendleft(_together(self.spans.popleft(), self.spans.popleft()))

    def forget_attempt(self) -> None:
        """Forget how this rank's attempt went, as a new one has begun on other ranks."""
        self.error = self.outcome = self.phase = self.phase_since = self.beat = self.stands = None
        self.pid = self.samples_per_s = self.data_wait = self.rss = self.rss_peak = None
        self.ended, self.exit = False, None
        for name in GPU_MEMORY:
            setattr(self, name, ())
        self.step_times.clear()
        self.spans.clear()


def _together(one: schema.StepTime, other: schema.StepTime
              ) -> schema.StepTime:
    """Two events in a row as one. If it is not yet known of the first what it is of the other, the
    first is left out, as it would make that unknown."""
    if any(getattr(one, p) is None and getattr(other, p) is not None for p in ALWAYS):
        one = schema.StepTime(one.step, 0, 0.0)
    parts: dict[str, Any] = {}
    for name in (*schema.PARTS, *COUNTS):
        known = [v for v in (getattr(one, name), getattr(other, name)) if v is not None]
        parts[name] = sum(known) if known else None
    longest = one if one.n > other.n else other
    stalled = one if (one.stalls or 0) > (other.stalls or 0) else other
    return schema.StepTime(other.step, one.n + other.n, one.seconds + other.seconds,
                           median=longest.median, workers=other.workers, device=other.device,
                           exchange=longest.exchange, every=stalled.every,
                           stalled_in=stalled.stalled_in,
                           **parts)
