"""The state of a run, which the supervisor keeps in state.json.

Unknown fields are ignored when it is read, so an older version can read what a newer one wrote.
A file whose values make no sense counts as no state at all.
"""

from __future__ import annotations

import math
from dataclasses import asdict, fields
from typing import Any, Literal

from gpu_engine.common.frozen import frozen

StateName = Literal["queued", "starting", "running", "stopping", "completed", "stopped", "failed",
                    "lost", "unreadable"]
LIVE = frozenset({"queued", "starting", "running", "stopping"})
FINAL = frozenset({"completed", "stopped", "failed", "lost"})
EXIT_CODES = {"completed": 0, "stopped": 130, "failed": 1, "lost": 1, "unreadable": 1}


@frozen(slots=True)
class RankProcess:
    """A process that the supervisor started for the run."""

    rank: int
    pid: int
    ticks: int | None
    exit: int | None = None
    """Its exit status, the negative signal number if a signal ended it; None while it runs."""


@frozen(slots=True)
class Cause:
    """Why a run failed: the rank that failed first, and its error."""

    message: str
    rank: int | None = None
    type: str | None = None
    traceback: str | None = None
    host: str | None = None
    """The machine that it failed on, as devices.hosts names it; None: this one."""

    @property
    def who(self) -> str | None:
        """"rank 3", "rank 3 on gpu2", "gpu2"; None where nothing is known of it."""
        rank = None if self.rank is None else f"rank {self.rank}"
        return " on ".join(filter(None, (rank, self.host))) or None

    @property
    def line(self) -> str:
        """The cause in one line, with the rank and the host if they are known."""
        first, _, more = self.message.partition("\n")
        first = (first.removesuffix(".") if more else first) or self.type or "failed"
        return first if self.who is None else f"{self.who}: {first}"


@frozen(slots=True)
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


@frozen(slots=True)
class AttemptRecord:
    """One start of all ranks, and how it ended."""

    number: int
    started: float
    """Unix seconds, as is ended."""
    ended: float | None = None
    outcome: str | None = None
    """completed | stopped | failed | lost; None while it runs."""
    reason: str | None = None
    changed: tuple[str, ...] = ()
    """The settings that differ from the attempt before, as `key=value`."""
    requeued: int | None = None
    """In a Slurm job: how often that had been requeued when this attempt began; else None."""


@frozen(slots=True)
class State:
    """The state of a run. Two states are never in state.json but found by the reader: *lost* if
    the supervisor is gone, *unreadable* if neither state.json nor the lock can be read, so that
    it is not known whether the run lives."""

    state: StateName
    id: str
    name: str
    created: float
    """Unix seconds, as are started and ended."""
    started: float | None = None
    ended: float | None = None
    attempt: int = 1
    pid: int | None = None
    """The supervisor's process id."""
    ticks: int | None = None
    """When the supervisor started, in clock ticks since boot."""
    boot: str | None = None
    """The id of the boot in which it was started."""
    processes: tuple[RankProcess, ...] = ()
    exit_code: int | None = None
    reason: str | None = None
    """One line for people."""
    cause: Cause | None = None
    attempts: tuple[AttemptRecord, ...] = ()
    """Every attempt so far, the current one last."""
    again: float | None = None
    """While the run waits for its next attempt: when that starts, Unix seconds."""
    changed: tuple[str, ...] = ()
    """The settings that a resume has changed, as `key=value`, until its attempt begins."""
    warnings: tuple[Notice, ...] = ()
    """What is told of the current attempt, or of the last one."""

    @property
    def live(self) -> bool:
        """Whether the run has not ended: it is queued, starting, running or stopping."""
        return self.state in LIVE

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

    def to_dict(self) -> dict[str, object]:
        """The state as state.json holds it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: object) -> State | None:
        """The inverse of `to_dict`; None if `data` is not a state."""
        try:
            known = _known(cls, data)
            known["processes"] = tuple(RankProcess(**_known(RankProcess, p))
                                       for p in known.get("processes", ()))
            known["attempts"] = tuple(AttemptRecord(**_with_texts(_known(AttemptRecord, a)))
                                      for a in known.get("attempts", ()))
            known = _with_texts(known)
            known["warnings"] = tuple(_notice(n) for n in known.get("warnings", ()))
            if known.get("cause"):
                known["cause"] = Cause(**_known(Cause, known["cause"]))
            state = cls(**known)
            return state if state._sound() else None
        except (TypeError, AttributeError, KeyError):
            return None

    def _sound(self) -> bool:
        """Whether all values have the types and ranges that readers rely on."""
        times = [self.created, *(t for t in (self.started, self.ended, self.again)
                                 if t is not None)]
        whole = [self.attempt, *(n for n in (self.pid, self.ticks) if n is not None)]
        texts = [self.id, self.name, *(t for t in (self.reason, self.boot) if t is not None)]
        whole += [n for p in self.processes for n in (p.rank, p.pid)]
        whole += [a.requeued for a in self.attempts if a.requeued is not None]
        return (self.state in LIVE | FINAL and all(_number(t) for t in times)
                and all(isinstance(n, int) and not isinstance(n, bool) for n in whole)
                and all(isinstance(t, str) for t in texts))


def _known(cls: type[Any], data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise TypeError
    return {f.name: data[f.name] for f in fields(cls) if f.name in data}


def _with_texts(known: dict[str, Any]) -> dict[str, Any]:
    """`known` with `changed` as a tuple. Raises TypeError if that is not a list of texts."""
    changed = known.get("changed", ())
    if not all(isinstance(text, str) for text in changed) or isinstance(changed, str):
        raise TypeError
    return known | {"changed": tuple(changed)}


def _notice(data: Any) -> Notice:
    """The inverse of a notice's dict. Raises TypeError."""
    known = _known(Notice, data)
    cure = known.pop("cure", ())
    texts, numbers = [known["code"], known["message"], *cure], [known.get(k) for k in
                                                               ("rank", "step")]
    if isinstance(cure, str) or not all(isinstance(text, str) for text in texts) or not all(
            n is None or type(n) is int for n in numbers):
        raise TypeError
    return Notice(**known, cure=tuple(cure))


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
