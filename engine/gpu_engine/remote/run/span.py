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
from typing import TYPE_CHECKING, Any

from gpu_engine.common import files, procs, units
from gpu_engine.common.errors import UserError
from gpu_engine.events.reader import backwards
from gpu_engine.events.schema import Error
from gpu_engine.remote.run import parts, rest
from gpu_engine.remote.run.link import Link, to_stop_text
from gpu_engine.remote.run.parts import Part
from gpu_engine.remote.run.prepare import again
from gpu_engine.remote.run.verdict import End, Outcome, by_our_clock, judge
from gpu_engine.runs import leftovers
from gpu_engine.runs.folder import EXIT_CODES, AttemptRecord, Cause, Run, State, StateName
from gpu_engine.runs.follow import Follower
from gpu_engine.runs.state import Notice

if TYPE_CHECKING:
    from gpu_engine.supervisor.supervise import Compare

WAKE = 8.0
"""Seconds that the others get to end by themselves, once one host's part has failed."""
LINGER = 60.0
"""Seconds that the others get to complete, once one has."""
LONGEST_PAUSE = 60.0
"""Seconds between two checks whether all hosts are there for another attempt."""
GIVE_UP = 60.0
"""Seconds for which a host that can't be reached is waited for, once all others have ended."""
_HOW = ((), ("--again",), ("--now",))
"""What a host is told of the first stop, of a second one, and of one at once."""
_UNNOTICED = 15.0
"""Seconds for which a connection may be cut without ssh having noticed."""

log = logging.getLogger(__name__)


class Span:
    """Holds one run together. `compare`: with what it may be stopped before its end. Raises
    UserError where its plan or parts can't be read."""

    def __init__(self, run: Run, compare: Compare | None) -> None:
        self.run, self.compare = run, compare
        self._ranks = Follower(run)
        self.spec = run.require_plan().spec
        self.parts: dict[str, Part] = {p.host: p for p in parts.read(run.path)}
        if not self.parts:
            raise UserError(f"{run.path / parts.FOLDER}: says nothing of the run's hosts")
        if (recorded := run.recorded()) is None:
            raise UserError(f"{run.path / 'state.json'}: can't be read")
        pid = os.getpid()
        self.state: State = replace(recorded, pid=pid, ticks=procs.start_ticks(pid),
                                    boot=procs.boot_id(), started=recorded.started or time.time())
        self.stop_asked = recorded.state == "stopping"
        self.asked = 0
        """How harshly signals have asked for that: an index of `_HOW` and one."""
        self.begun = recorded.attempt
        """The first of the attempts that train.restarts counts."""
        self._news = threading.Event()
        """Something of a host may have changed."""
        # Of one attempt:
        self.links: dict[str, Link] = {}
        self.over: dict[str, End] = {}
        self.told_to_stop = 0
        """How harshly all were asked to stop, as `asked`."""
        self.deadline: float | None = None
        """Monotonic seconds after which what is left is ended by force."""
        self.alone: float | None = None
        """Monotonic seconds since when only hosts that can't be reached are left."""

    def hold(self) -> None:
        """Until the run has ended."""
        told = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGQUIT)
        for number in told:
            signal.signal(number, self._hear)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, told)  # blocked by who started us, or waited
        files.remove_temporary(self.run.path / parts.FOLDER)
        if self.state.state == "queued":
            self._begin(self.state.attempt)
        else:
            self.begun -= sum(a.outcome == "failed" for a in self.state.attempts[:-1])
            self._write()
        while True:
            outcome, reason, cause = self._attempt()
            *before, last = self.state.attempts
            last = replace(last, ended=time.time(), outcome=outcome, reason=reason)
            self.state = replace(self.state, attempts=(*before, last))
            # The supervisor of a single part restarts its ranks itself, unless it is gone.
            ours = len(self.parts) > 1 or any(
                end.state is not None and end.state.state == "lost" for end in self.over.values())
            if outcome != "failed" or self._restarts_left() <= 0 or self.stop_asked or not ours \
                    or any(p.run is None for p in self.parts.values()):
                break
            why = self._again(reason)
            if self.stop_asked:
                outcome, cause = "stopped", None
                reason = f"stopped while waiting after attempt {last.number} failed"
                break
            if why is not None:
                reason, cause = why, Cause(why)
                break
        text, notices = self._left_behind(stopped=outcome == "stopped")
        self._set_state(outcome, ended=time.time(), exit_code=EXIT_CODES[outcome],
                        reason=text or reason, cause=cause, unheard=(), again=None,
                        warnings=(*self.state.warnings, *notices))

    def _left_behind(self, *, stopped: bool) -> tuple[str | None, list[Notice]]:
        """What is said of hosts that were away at the end: of those that could not be asked to
        stop, which another `stop` asks, and of what they have recorded and is not here."""
        lacking = list[Part]()
        for name, end in self.over.items():
            part = self.parts[name]
            if end.lost is not None and (part.run or part.asked):
                part = replace(part, behind=True,
                               to_stop=stopped and not self.links[name].told_to_stop)
                self._note(part)
                lacking.append(part)
        left = [part.host for part in lacking if part.to_stop]
        return to_stop_text(self.run, left) if left else None, rest.notice(self.run.path, lacking)

    # --- attempts ------------------------------------------------------------------------------

    def _begin(self, number: int) -> None:
        record = AttemptRecord(number, time.time(), changed=self.state.changed)
        self._set_state("starting", attempt=number, processes=(), cause=None, reason=None,
                        changed=(), again=None, attempts=(*self.state.attempts, record)[-50:])

    def _restarts_left(self) -> int:
        return self.spec.train.restarts - (self.state.attempt - self.begun)

    def _again(self, reason: str | None) -> str | None:
        """Begin the next attempt, at another port as the one before may still be held, once all
        hosts are there and meet: one that reboots is waited for. Returns why it can't begin within
        `run.host_wait`; None if it has, or a stop was asked for."""
        spec, failed = self.spec, self.state.attempt
        pause = min(2.0 ** (failed - self.begun), 30.0)
        end, then = time.monotonic() + pause + spec.run.host_wait, f"again in {pause:.0f} s"
        while True:
            self._set_state("starting", again=time.time() + pause,
                            reason=f"attempt {failed} failed: {reason}; {then}")
            over = time.monotonic() + pause
            while (left := over - time.monotonic()) > 0:
                if self.stop_asked:
                    return None
                time.sleep(min(left, 0.2))
            try:
                left = self._restarts_left() - 1  # that a single one may make by itself
                *_, told = again(self.run, replace(spec, train=replace(spec.train, restarts=left)),
                                 tuple(self.parts.values()))
            except UserError as err:
                log.warning("attempt %d can't begin yet: %s", failed + 1, err)
                room = end - time.monotonic()
                if room <= 0:
                    return f"{err}; waited for {units.clock(spec.run.host_wait)}"
                pause, then = min(max(2.0, 2 * pause), LONGEST_PAUSE, room), \
                    f"waits for its hosts: {err}"
                continue
            for part in told:
                self._note(part)
            self._begin(failed + 1)
            return None

    def _attempt(self) -> tuple[Outcome, str | None, Cause | None]:
        self.over = {}
        self.told_to_stop, self.deadline, self.alone = 0, None, None
        limit = self.spec.run.log_mb << 20
        self.links = {name: Link(self.run.path, part, limit, self._news)
                      for name, part in self.parts.items()}
        for link in self.links.values():
            link.start()
        while not self._finished():
            if self._news.wait(0.2) or self.stop_asked:
                self._news.clear()
                for name, link in self.links.items():
                    self._take_in(name, link)
                self._show()
            self._watch_rungs()
            self._decide()
        for name, link in self.links.items():
            self.over.setdefault(name, End(link.state, lost=link.part.problem
                                           or "it was given up"))
            link.give_up()
        self._watch_rungs()  # those that it has passed since
        outcome, reason, cause = judge(self.over, stop_asked=self.stop_asked)
        if outcome == "stopped" and (why := self.state.loses):
            reason = f"{why}; {reason}" if reason else why
        return outcome, reason, cause

    def _watch_rungs(self) -> None:
        """Record where the run stood at each rung that it has got to, and stop it there if it shall
        not go on."""
        if self.compare is None or self.compare.next is None or self.stop_asked:
            return
        self._ranks.poll()
        views = [v for v in self._ranks.ranks.values() if v.attempt == self.state.attempt]
        skew, now = next(iter(self.parts.values())).skew, time.time()
        # All that came before is here: it comes in order, and a cut is noticed.
        heard = max(min((v.beat or 0.0 for v in views), default=0.0) - skew, min(
            link.part.since or now for link in self.links.values()) - _UNNOTICED)
        ends = bool(self.over)
        while not self.stop_asked and (rung := self.compare(
                self.state, views, ends, now if ends else heard, skew)) is not None:
            self.stop_asked = rung.why is not None
            # In one writing: whoever goes on with the run stops it.
            self._set_state("stopping" if rung.why else self.state.state,
                            rungs=(*self.state.rungs, rung))

    def _take_in(self, name: str, link: Link) -> None:
        """What is new of a host."""
        part = link.part
        if link.over and name not in self.over:
            state, why = link.state, link.refused
            if why is None and state is not None:
                self.over[name] = End(state, failed_at=self._failed_at(part, state))
            else:
                why = None if self.stop_asked and not state else why
                self.over[name] = End(state, refused=why, failed_at=time.time())
                part = link.part = replace(part, problem=why, since=time.time())
        if part != self.parts[name]:
            self._note(part)

    def _decide(self) -> None:
        """Ask the others to stop where one has ended otherwise than well, or a person has asked."""
        if self.stop_asked:
            self._stop_all(self.asked or 1)
        states = {link.state.state for link in self.links.values() if link.state is not None}
        refused = any(end.refused is not None for end in self.over.values())
        seconds = None
        if len(self.links) > 1 and (refused or states & {"failed", "lost"}):
            seconds = WAKE
            self._stop_all(1)
        elif states & {"completed", "stopped"}:
            seconds = LINGER if "completed" in states else self.spec.run.grace + 2 * WAKE
        if self.deadline is None and seconds is not None:
            self.deadline = time.monotonic() + seconds
        if self.deadline is not None and time.monotonic() >= self.deadline:
            self._stop_all(len(_HOW))

    def _stop_all(self, asked: int) -> None:
        if asked > self.told_to_stop:
            self.told_to_stop = asked
            for name, link in self.links.items():
                if name not in self.over:
                    link.stop(*_HOW[asked - 1])

    def _finished(self) -> bool:
        left = [link for name, link in self.links.items() if name not in self.over]
        if not left:
            return True
        ending = self.stop_asked or bool(self.over)
        if not ending or any(link.part.problem is None for link in left):
            self.alone = None
            return False
        self.alone = self.alone or time.monotonic()
        # After a stop, another `stop` asks who is left; before another attempt it is waited for.
        soon = self.stop_asked or self._restarts_left() > 0
        return time.monotonic() - self.alone > (WAKE if soon else GIVE_UP)

    def _failed_at(self, part: Part, state: State) -> float | None:
        """When its first rank failed, by this machine's clock."""
        if state.state not in ("failed", "lost"):
            return None
        begun = state.attempts[-1].started if state.attempts else 0.0
        times = [error.t for rank in part.ranks
                 for error in backwards(self.run.events(rank), Error, within=1 << 20)
                 if error.t >= begun]
        ended = part.heard + part.skew if state.state == "lost" and part.heard else state.ended
        return by_our_clock(min(times, default=ended), part.skew,
                                    self.state.attempts[-1].started, time.time())

    # --- state ---------------------------------------------------------------------------------

    def _show(self) -> None:
        """What of the parts' states is the run's."""
        states = {n: link.state for n, link in self.links.items() if link.state is not None}
        kinds = {s.state for s in states.values()}
        name: StateName = "running"
        if self.stop_asked or "stopping" in kinds:
            name = "stopping"
        elif len(states) < len(self.links) or kinds & {"queued", "starting"}:
            name = "running" if self.state.state == "running" else "starting"
        silent = {n: link for n, link in self.links.items()
                  if n not in self.over and (link.part.problem or link.unheard)}
        reason = self._silence(silent) or next(
            (f"{n}: {s.reason}" for n, s in states.items()
             if s.reason and s.live), None)
        warnings = {one.code: one for s in states.values() for one in s.warnings}
        changes: dict[str, Any] = {
            "until": min((link.state.until - link.part.skew for link in self.links.values()
                          if link.state is not None and link.state.until), default=None),
            "reason": reason, "warnings": tuple(warnings.values()),
            "unheard": tuple(sorted(r for link in silent.values() for r in link.part.ranks))}
        if len(self.parts) == 1 and states:
            only = next(iter(states.values()))
            changes |= {"attempt": only.attempt, "again": only.again}
        if name != self.state.state or any(
                getattr(self.state, key) != value for key, value in changes.items()):
            self._set_state(name, **changes)

    def _silence(self, silent: dict[str, Link]) -> str | None:
        """Of hosts that can't be reached, or whose disk is full. Rank 0's has the checkpoints."""
        said = []
        for name, link in silent.items():
            part, since = link.part, time.localtime(link.part.since)
            if part.problem:
                said += [f"{n} has failed" for n, end in self.over.items() if end.cause]
                said.append(f"{name} has not been reached since {time.strftime('%H:%M:%S', since)}"
                            f": {part.problem}")
                continue
            saved = leftovers.last_checkpoint(self.run.path)
            said.append(f"{name}: {link.unheard}" + ("" if part.node else (
                "; no checkpoint can be written there, "
                + (f"the last is {saved}" if saved else "and there is none yet"))))
        return "; ".join(dict.fromkeys(said)) or None

    def _note(self, part: Part) -> None:
        self.parts[part.host] = part
        try:
            parts.write(self.run.path, part)
        except OSError as err:
            log.error("hosts/%s.json can't be written: %s", part.host, err)

    def _set_state(self, name: StateName, **changes: Any) -> None:
        self.state = replace(self.state, state=name, **changes)
        self._write()

    def _write(self) -> None:
        try:
            self.run.write_state(self.state)
        except OSError as err:
            log.error("state.json can't be written: %s", err)

    def _hear(self, number: int, _: object) -> None:
        self.stop_asked = True
        again = self.asked > 0 and number == signal.SIGINT
        self.asked = max(self.asked, 3 if number == signal.SIGQUIT else 2 if again else 1)
