"""The state of a run, which the supervisor keeps in state.json.

Unknown fields are ignored when it is read, so an older version can read what a newer one wrote.
A file in which any field has a value that it can't have counts as no state at all.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Literal

from gpu_engine.common import units
from gpu_engine.common.errors import with_type
from gpu_engine.common.records import Pid, UnixTime, Whole, read_record
from gpu_engine.common.values import Bounds

StateName = Literal["queued", "starting", "running", "stopping", "completed", "stopped", "failed",
                    "lost", "unreadable"]
LIVE = frozenset({"queued", "starting", "running", "stopping"})
FINAL = frozenset({"completed", "stopped", "failed", "lost"})
Status = Annotated[int, Bounds(ge=-(1 << 31), le=1 << 31)]
"""An exit status, or the negative number of a signal."""
MADE_ROOM, MAKES_ROOM = "made room", "makes room for "
"""The outcome of an attempt that ended for others (run.give_way); and how the reason begins while
it does."""
EXIT_CODES = {"completed": 0, "stopped": 130, "failed": 1, "lost": 1, "unreadable": 1}


@dataclass(frozen=True, slots=True)
class RankProcess:
    """A process that the supervisor started for the run."""

    rank: Whole
    pid: Pid
    ticks: Whole | None
    exit: Status | None = None
    """Its exit status, the negative signal number if a signal ended it; None while it runs."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a run failed: the rank that failed first, and its error."""

    message: str
    rank: Whole | None = None
    type: str | None = None
    traceback: str | None = None
    host: str | None = None
    """The machine that it failed on, as devices.hosts names it; None: this one."""
    taken: bool = False
    """Whether no rank could begin, as somebody else was on the devices."""

    @property
    def who(self) -> str | None:
        """"rank 3", "rank 3 on gpu2", "gpu2"; None where nothing is known of it."""
        rank = None if self.rank is None else f"rank {self.rank}"
        return " on ".join(filter(None, (rank, self.host))) or None

    @property
    def line(self) -> str:
        """The cause in one line, with the rank, the host and the exception's type if they are
        known."""
        first, _, more = self.message.partition("\n")
        if more and first.endswith("."):  # what stands above the error says what kind it is
            first = first.removesuffix(".")
        else:
            first = with_type(self.type, first or self.type or "failed")
        return first if self.who is None else f"{self.who}: {first}"


@dataclass(frozen=True, slots=True)
class Notice:
    """Something about a run that nobody would see from how it ends: it goes on, and may complete,
    but does not do what it seems to do."""

    code: str
    """One word for programs: see `events.notices`."""
    message: str
    """One line for people."""
    cure: tuple[str, ...] = ()
    """The lines of a script that would mend it."""
    rank: int | None = None
    step: int | None = None
    """Where it began, if it has a place: a loss that is not finite."""


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One start of all ranks, and how it ended."""

    number: Whole
    started: UnixTime
    """Unix seconds, as is ended."""
    ended: UnixTime | None = None
    outcome: str | None = None
    """completed | stopped | failed | lost | made room; None while it runs."""
    reason: str | None = None
    changed: tuple[str, ...] = ()
    """The settings that differ from the attempt before, as `key=value`."""
    first_step: Whole | None = None
    """Of one after the first: the step with which it went on; None: not known (yet)."""
    requeued: Whole | None = None
    """In a Slurm job: how often that had been requeued when this attempt began; else None."""


@dataclass(frozen=True, slots=True)
class Rung:
    """A share of its budget that a member of a sweep has got to, and where it stood there."""

    share: Annotated[float, Bounds(ge=0, le=1)]
    t: UnixTime
    """When that was seen, Unix seconds."""
    step: Whole | None = None
    best: float | None = None
    """Its best value until then; None: none was a finite number, which is worse than any."""
    attempt: Whole = 1
    why: str | None = None
    """Why it was stopped there; None: it was not."""


@dataclass(frozen=True, slots=True)
class State:
    """The state of a run. Two states are never in state.json but found by the reader: *lost* if
    the supervisor is gone, *unreadable* if neither state.json nor the lock can be read, so that
    it is not known whether the run lives."""

    state: StateName
    id: str
    name: str
    created: UnixTime
    """Unix seconds, as are started and ended."""
    started: UnixTime | None = None
    ended: UnixTime | None = None
    attempt: Whole = 1
    pid: Pid | None = None
    ticks: Whole | None = None
    """When the supervisor started, in clock ticks since boot."""
    boot: str | None = None
    """The id of the boot in which it was started."""
    processes: tuple[RankProcess, ...] = ()
    exit_code: Status | None = None
    reason: str | None = None
    cause: Cause | None = None
    attempts: tuple[AttemptRecord, ...] = ()
    """Every attempt so far, the current one last."""
    again: UnixTime | None = None
    """While the run waits for its next attempt: when that starts, Unix seconds."""
    changed: tuple[str, ...] = ()
    """The settings that a resume has changed, as `key=value`, until its attempt begins."""
    warnings: tuple[Notice, ...] = ()
    """What is told of the current attempt, or of the last one."""
    unheard: tuple[Whole, ...] = ()
    """Ranks that nothing is heard of now although they may go on, as their host can't be reached
    or its disk is full: `reason` says which. That they look still means nothing."""
    until: UnixTime | None = None
    """When its time is up (run.limit), Unix seconds; None before its first step."""
    rungs: tuple[Rung, ...] = ()
    """Where it was compared with the others of its sweep (run.stop_worse, run.halving), in order,
    over all attempts."""

    @property
    def live(self) -> bool:
        """Whether the run has not ended: it is queued, starting, running or stopping."""
        return self.state in LIVE

    @property
    def began(self) -> float:
        """When its last attempt began, Unix seconds; before the first, when it was made."""
        return self.attempts[-1].started if self.attempts else self.started or self.created

    def took(self, now: float) -> float | None:
        """The seconds that its attempts took, without the time between them; of a live run until
        `now`, Unix seconds. None if that is not known."""
        if not self.attempts:
            end = self.ended or (now if self.live else None)
            return None if end is None or self.started is None else end - self.started
        times = [(a.ended or (now if self.live and a is self.attempts[-1] else None), a.started)
                 for a in self.attempts]
        known = [end - start for end, start in times if end is not None]
        return sum(known) if known else None

    def made_room(self, now: float) -> str | None:
        """For whom the last attempt that has ended made room, when, and from where it went on:
        "made room for run 3f2a of ann at 09:02, resumed 13:40 at step 8,120"; None: it did not.
        `now`: Unix seconds."""
        last = next((a for a in reversed(self.attempts) if a.outcome is not None), None)
        if last is None or last.outcome != MADE_ROOM:
            return None
        text = f"{last.reason} at {units.time_of_day(last.ended or last.started, now)}"
        if (on := self.attempts[-1]) is last:
            return text
        return f"{text}, resumed {units.time_of_day(on.started, now)}" + (
            # A command's steps are counted anew where it does not say them itself.
            "" if on.first_step in (None, 1) else f" at step {on.first_step:,}")

    def why(self, now: float) -> str | None:
        """The reason of its state; of a run that goes on after it made room, for whom it did."""
        return self.reason or (self.made_room(now) if self.live else None)

    def left(self, steps: float | None, now: float) -> float | None:
        """The seconds that are left at `now`, Unix seconds, if its `steps` take that long: less
        where its time is up before. None if neither is known."""
        known = [steps] if steps is not None else []
        return min([*known, max(self.until - now, 0.0)] if self.until is not None else known,
                   default=None)

    @property
    def rests(self) -> bool:
        """Whether it was stopped at a rung, from which it may go on (run.halving)."""
        return self.state == "stopped" and bool(self.rungs) \
            and self.rungs[-1].attempt == self.attempt

    @property
    def loses(self) -> str | None:
        """Why it was stopped at the last rung of this attempt; None: it was not."""
        last = self.rungs[-1] if self.rungs else None
        return last.why if last is not None and last.attempt == self.attempt else None

    def to_dict(self) -> dict[str, object]:
        """The state as state.json holds it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: object) -> State | None:
        """The inverse of `to_dict`; None if `data` is not a state."""
        try:
            state = read_record(cls, data, strict=True)
        except ValueError:
            return None
        return state if state.state != "unreadable" else None
