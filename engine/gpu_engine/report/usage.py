"""Who had which devices for how long: device-hours of runs, holds and other users.

A device that two runs share counts for both. Of ten thousand runs only `state.json`, and of those
that were going on in the time that is asked for `plan.json`, are read.
"""

from __future__ import annotations

import pwd
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from gpu_engine.devices.use_log import Use
from gpu_engine.runs.folder import Run, each_run
from gpu_engine.runs.state import LIVE

_Time = Annotated[float, msgspec.Meta(ge=0, lt=1e12)]
_LONGEST = 8 << 20


class _Attempt(msgspec.Struct):
    started: _Time
    ended: _Time | None = None


class _State(msgspec.Struct):
    state: str
    attempts: list[_Attempt] = []


class _Device(msgspec.Struct):
    label: str


class _Rank(msgspec.Struct):
    devices: list[_Device]
    host: str | None = None


class _Plan(msgspec.Struct):
    ranks: list[_Rank]


_state, _plan = msgspec.json.Decoder(_State), msgspec.json.Decoder(_Plan)


def of_runs(since: float, now: float) -> Iterator[Use]:
    """What runs have used between two times (Unix seconds). One that can't be read is left out."""
    for run in each_run():
        try:
            yield from _of_run(run, since, now)
        except (OSError, msgspec.MsgspecError):
            continue


def _of_run(run: Run, since: float, now: float) -> Iterator[Use]:
    state = _state.decode(_text(run.path / "state.json"))
    if state.attempts and state.state in LIVE:  # unless its supervisor is gone
        known = run.state()
        state.attempts[-1].ended = now if known.live else known.ended
    spans = [(max(a.started, since), min(a.ended, now)) for a in state.attempts
             if a.ended is not None and a.ended > since and a.started < now]
    if not spans:
        return
    labels = {device.label + (f" on {rank.host}" if rank.host else "")
              for rank in _plan.decode(_text(run.path / "plan.json")).ranks
              for device in rank.devices}
    uid = run.path.stat().st_uid
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = f"uid {uid}"
    for start, end in spans:
        for label in labels:
            yield Use(user, label, start, end, run.id)


def _text(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_LONGEST)


@dataclass(slots=True)
class Sum:
    """The device-seconds of a user, a run or a device."""

    name: str
    runs: float = 0.0
    holds: float = 0.0
    seen: float = 0.0
    """Of other users, as far as a panel looked."""

    @property
    def all(self) -> float:
        """Of all three."""
        return self.runs + self.holds + self.seen


def sums(uses: Iterable[Use], by: str) -> list[Sum]:
    """The sum of each user, run or device (`by`), the most first."""
    found: dict[str, Sum] = {}
    for use in uses:
        name = {"user": use.user, "device": use.device, "run": use.run or use.kind}[by]
        row, seconds = found.setdefault(name, Sum(name)), use.end - use.start
        if use.kind == "run":
            row.runs += seconds
        elif use.kind == "hold":
            row.holds += seconds
        else:
            row.seen += seconds
    return sorted(found.values(), key=lambda row: -row.all)
