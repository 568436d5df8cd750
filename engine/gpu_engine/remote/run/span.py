"""The life of a run on other machines, seen from this one: all hosts start together, are mirrored,
and end together.

Each host's part has a supervisor of its own there, so this process may end, be killed or lose its
connections: nothing there does. Whoever comes next goes on from what the run's folder holds.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from dataclasses import replace
from typing import Any

from gpu_engine.common import files, procs, units
from gpu_engine.common.errors import UserError
from gpu_engine.events.reader import backwards
from gpu_engine.events.schema import Error
from gpu_engine.remote.run import parts, queries, verdict
from gpu_engine.remote.run.link import Link, Status
from gpu_engine.remote.run.parts import Part
from gpu_engine.remote.run.verdict import End
from gpu_engine.runs import leftovers
from gpu_engine.runs.folder import AttemptRecord, Cause, Run, State, StateName

WAKE = 8.0
"""Seconds that the others get to end by themselves, once one host's part has failed."""
LINGER = 60.0
"""Seconds that the others get to complete, once one has."""
LONGEST_PAUSE = 60.0
"""Seconds between two checks whether all hosts are there for another attempt."""
GIVE_UP = 60.0
"""Seconds for which a host that can't be reached is waited for, once all others have ended."""
_EXIT = {"completed": 0, "stopped": 130, "failed": 1}
_ENDED = ("completed", "stopped", "failed", "lost", "unreadable")

log = logging.getLogger(__name__)


class Span:
    """Holds one run together. Raises UserError where its plan or parts can't be read."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.plan = run.require_plan()
        found = parts.read(run.path)
        if not found:
            raise UserError(f"{run.path / parts.FOLDER}: says nothing of the run's hosts")
        self.parts: dict[str, Part] = {p.host: p for p in found}
        recorded = State.from_dict(files.json_inside(run.path, "state.json"))
        if recorded is None:
            raise UserError(f"{run.path / 'state.json'}: can't be read")
        pid = os.getpid()
        self.state: State = replace(recorded, pid=pid, ticks=procs.start_ticks(pid),
                                    boot=procs.boot_id(), started=recorded.started or time.time())
        self.stop_asked = recorded.state == "stopping"
        self.now_asked = False
        self.begun = recorded.attempt
        """The first of the attempts that train.restarts counts."""
        self._news = threading.Event()
        """Something of a host may have changed."""
        self._clear()

    def _clear(self) -> None:
        self.links: dict[str, Link] = {}
        self.seen: dict[str, Status] = {}
        """Host → what is known of its part, as it was taken in."""
        self.over: dict[str, End] = {}
        self.told_to_stop: bool | None = None
        """Whether all were asked to stop, and if so now."""
        self.deadline: float | None = None
        """Monotonic seconds after which what is left is ended by force."""
        self.alone: float | None = None
        """Monotonic seconds since when only hosts that can't be reached are left."""

    def hold(self) -> State:
        """Until the run has ended. Returns the end."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self._hear_stop)
        signal.signal(signal.SIGQUIT, self._hear_now)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked by who started us
        files.remove_temporary(self.run.path / parts.FOLDER)
        self.begun = self.state.attempt
        if self.state.state == "queued":
            self._begin(self.state.attempt)
        else:
            self.begun -= sum(a.outcome == "failed" for a in self.state.attempts[:-1])
            self._write()
        while True:
            outcome, reason, cause = self._attempt()
            self._record(outcome, reason)
            number = self.state.attempt
            left = self._restarts_left()
            if outcome != "failed" or left <= 0 or self.stop_asked or not self._ours_to_restart():
                break
            delay = min(2.0 ** (number - self.begun), 30.0)
            self._set_state("starting", again=time.time() + delay,
                            reason=f"attempt {number} failed: {reason}; again in {delay:.0f} s")
            waited = self._pause(delay)
            self.state = replace(self.state, again=None)
            why = self._once_there(number, reason, left - 1) if waited else None
            if self.stop_asked:
                outcome, cause = "stopped", None
                reason = f"stopped while waiting after attempt {number} failed"
                break
            if why is not None:
                reason, cause = why, Cause(why)
                break
        if outcome == "stopped":
            reason = self._owe() or reason
        self._set_state(outcome, ended=time.time(), exit_code=_EXIT[outcome], reason=reason,
                        cause=cause, unheard=())
        return self.state

    def _owe(self) -> str | None:
        """Note which hosts could not be asked to stop; returns that in words."""
        left = [n for n, end in self.over.items()
                if end.lost is not None and self.parts[n].run is not None]
        for name in left:
            self._note(name, to_stop=True)
        return queries.to_stop_text(self.run, left) if left else None

    # --- one attempt ---------------------------------------------------------------------------

    def _begin(self, number: int) -> None:
        record = AttemptRecord(number, time.time(), changed=self.state.changed)
        self._set_state("starting", attempt=number, processes=(), cause=None, reason=None,
                        changed=(), attempts=(*self.state.attempts, record)[-50:])

    def _once_there(self, failed: int, reason: str | None, left: int) -> str | None:
        """Begin the attempt after attempt `failed`, as soon as all hosts are there and meet: one
        that reboots is waited for. `left`: the restarts after that. Returns why it can't begin
        within `run.host_wait`; None if it has, or a stop was asked for."""
        end, pause = time.monotonic() + self.plan.spec.run.host_wait, 2.0
        while True:
            try:
                self._another(failed + 1, left)
                return None
            except UserError as err:
                why, room = str(err), end - time.monotonic()
            if room <= 0:
                return f"{why}; waited for {units.clock(self.plan.spec.run.host_wait)}"
            log.warning("attempt %d can't begin yet: %s", failed + 1, why)
            pause = min(pause, room)
            self._set_state("starting", again=time.time() + pause,
                            reason=f"attempt {failed} failed: {reason}; waits for its hosts: {why}")
            if not self._pause(pause):
                return None
            self.state = replace(self.state, again=None)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _another(self, number: int, left: int) -> None:
        """All parts again, at another port: the one before may still be held. Raises UserError
        where they can't meet."""
        from gpu_engine.remote.run import next_attempt

        self.parts = {p.host: p for p in next_attempt.parts_again(
            self.run, tuple(self.parts.values()), self.plan.spec, left)}
        for part in self.parts.values():
            parts.write(self.run.path, part)
        self._begin(number)

    def _restarts_left(self) -> int:
        return self.plan.spec.train.restarts - (self.state.attempt - self.begun)

    def _ours_to_restart(self) -> bool:
        """Whether the next attempt is to be begun from here: all parts had begun, and a supervisor
        of a single one, which restarts its ranks itself, is gone."""
        return all(p.run is not None for p in self.parts.values()) and (
            len(self.parts) > 1 or any(end.state is not None and end.state.state == "lost"
                                       for end in self.over.values()))

    def _attempt(self) -> tuple[verdict.Outcome, str | None, Cause | None]:
        self._clear()
        limit = self.plan.spec.run.log_mb << 20
        self.links = {name: Link(self.run.path, part, limit, self._news)
                      for name, part in self.parts.items()}
        self.seen = dict.fromkeys(self.links, Status())
        for one in self.links.values():
            one.start()
        while not self._finished():
            self._news.wait(0.2)
            self._news.clear()
            for name in self.links:
                self._update(name)
            self._decide()
        for name, one in self.links.items():
            seen = self.seen[name]
            self.over.setdefault(name, End(seen.state, lost=seen.broken or "it was given up"))
            one.give_up()
        return verdict.judge(self.over, stop_asked=self.stop_asked)

    def _update(self, name: str) -> None:
        """Take in what is new of a host."""
        before, now = self.seen[name], self.links[name].status
        if now == before:
            return
        self.seen[name] = now
        if now.run != before.run:
            log.info("%s: run %s there", name, now.run)
            self._note(name, run=now.run, path=now.path, resume=False)
        if (now.broken, now.since) != (before.broken, before.since):
            log.warning("%s: %s", name, now.broken or "it can be reached again")
            heard = {} if now.broken else {"heard": time.time()}
            self._note(name, problem=now.broken, since=now.since, **heard)
        if now.unheard not in (None, before.unheard):
            log.warning("%s: %s", name, now.unheard)
        state = now.state
        if state is not None and (before.state is None or before.state.state != state.state):
            log.info("%s: %s", name, state.state)
            self._note(name, state=state.state, heard=time.time(),
                       attempt=max(state.attempt, self.parts[name].attempt))
        if now.refused is not None:
            log.error("%s: %s", name, now.refused)
            why = None if self.stop_asked and not state else now.refused
            self.over[name] = End(state, refused=why, failed_at=time.time())
            self._note(name, problem=why, since=time.time())
        elif now.over and state is not None:
            self.over[name] = End(state, failed_at=self._failed_at(name, state))
        self._show()

    def _told(self) -> dict[str, State]:
        """How the hosts that have said so are."""
        return {name: seen.state for name, seen in self.seen.items() if seen.state is not None}

    def _decide(self) -> None:
        """Ask the others to stop where one has ended otherwise than well, or a person has asked."""
        if self.stop_asked or self.now_asked:
            self._stop_all(now=self.now_asked)
        states = {n: s.state for n, s in self._told().items()}
        failed = [n for n in self.links if states.get(n) in ("failed", "lost")
                  or (n in self.over and self.over[n].refused is not None)]
        if failed and len(self.links) > 1:
            self._limit(WAKE)
            self._stop_all(now=False)
        elif any(s in ("completed", "stopped") for s in states.values()):
            grace = self.plan.spec.run.grace
            self._limit(LINGER if "completed" in states.values() else grace + 2 * WAKE)
        if self.deadline is not None and time.monotonic() >= self.deadline:
            self._stop_all(now=True)

    def _stop_all(self, *, now: bool) -> None:
        if self.told_to_stop is None or (now and not self.told_to_stop):
            self.told_to_stop = now
            for name, one in self.links.items():
                if name not in self.over:
                    one.stop(now=now)

    def _limit(self, seconds: float) -> None:
        if self.deadline is None:
            self.deadline = time.monotonic() + seconds

    def _finished(self) -> bool:
        left = [n for n in self.links if n not in self.over]
        if not left:
            return True
        ending = self.stop_asked or bool(self.over)
        if not ending or any(self.seen[n].broken is None for n in left):
            self.alone = None
            return False
        self.alone = self.alone or time.monotonic()
        if self.now_asked and time.monotonic() - self.alone > WAKE:
            return True
        # After a stop, another `stop` asks who is left; before another attempt it is waited for.
        soon = self.stop_asked or self._restarts_left() > 0
        return time.monotonic() - self.alone > (WAKE if soon else GIVE_UP)

    def _failed_at(self, name: str, state: State) -> float | None:
        """When its first rank failed, by this machine's clock."""
        if state.state not in ("failed", "lost"):
            return None
        part = self.parts[name]
        begun = state.attempts[-1].started if state.attempts else 0.0
        times = [error.t for rank in part.ranks
                 for error in backwards(self.run.events(rank), Error, within=1 << 20)
                 if error.t >= begun]
        ended = part.heard + part.skew if state.state == "lost" and part.heard else state.ended
        return verdict.by_our_clock(min(times, default=ended), part.skew,
                                    self.state.attempts[-1].started, time.time())

    # --- state ---------------------------------------------------------------------------------

    def _show(self) -> None:
        """What of the parts' states is the run's."""
        known = self._told()
        states = [s.state for s in known.values()]
        name: StateName = "running"
        if self.stop_asked or "stopping" in states:
            name = "stopping"
        elif len(states) < len(self.links) or any(s in ("queued", "starting") for s in states):
            name = self.state.state if self.state.state == "running" else "starting"
        reason = self._unreached() or self._unrecorded() or next(
            (f"{n}: {s.reason}" for n, s in known.items()
             if s.reason and s.state not in _ENDED), None)
        warnings = {one.code: one for s in known.values() for one in s.warnings}
        changes: dict[str, Any] = {"warnings": tuple(warnings.values()), "unheard": tuple(sorted(
            rank for n, seen in self.seen.items() for rank in self.parts[n].ranks
            if n not in self.over and (seen.broken or seen.unheard)))}
        if len(self.parts) == 1 and states:
            only = next(iter(known.values()))
            changes |= {"attempt": only.attempt, "again": only.again}
        if (name, reason) != (self.state.state, self.state.reason) or any(
                getattr(self.state, k) != v for k, v in changes.items()):
            self._set_state(name, reason=reason, **changes)

    def _unreached(self) -> str | None:
        waiting = [f"{n} has not been reached since {_clock(seen.since)}: {seen.broken}"
                   for n, seen in self.seen.items() if seen.since and n not in self.over]
        failed = [f"{n} has failed" for n, end in self.over.items() if end.cause and waiting]
        return "; ".join([*failed, *waiting]) or None

    def _unrecorded(self) -> str | None:
        """Of hosts whose disk is full. Rank 0's has the checkpoints, too."""
        said = []
        for name, seen in self.seen.items():
            if seen.unheard and name not in self.over:
                saved = leftovers.last_checkpoint(self.run.path)
                lacks = "" if self.parts[name].node else "; no checkpoint can be written there, " \
                    + (f"the last is {saved}" if saved else "and there is none yet")
                said.append(f"{name}: {seen.unheard}{lacks}")
        return "; ".join(said) or None

    def _record(self, outcome: str, reason: str | None) -> None:
        *before, last = self.state.attempts
        last = replace(last, ended=time.time(), outcome=outcome, reason=reason)
        self.state = replace(self.state, attempts=(*before, last))

    def _note(self, name: str, **changes: Any) -> None:
        self.parts[name] = replace(self.parts[name], **changes)
        try:
            parts.write(self.run.path, self.parts[name])
        except OSError as err:
            log.error("hosts/%s.json can't be written: %s", name, err)

    def _set_state(self, name: StateName, **changes: Any) -> None:
        self.state = replace(self.state, state=name, **changes)
        self._write()

    def _write(self) -> None:
        try:
            self.run.write_state(self.state)
        except OSError as err:
            log.error("state.json can't be written: %s", err)

    def _pause(self, seconds: float) -> bool:
        """Wait; False when asked to stop meanwhile."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not self.stop_asked:
            time.sleep(min(left, 0.2))
        return not self.stop_asked

    def _hear_stop(self, *_: object) -> None:
        self.stop_asked = True

    def _hear_now(self, *_: object) -> None:
        self.stop_asked = self.now_asked = True


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))
