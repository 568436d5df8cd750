"""The life of one run on this node: attempts, each started, watched and ended."""

from __future__ import annotations

import logging
import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from gpu_engine.common import files, procs, units
from gpu_engine.common.errors import UserError
from gpu_engine.devices.leases import Leases
from gpu_engine.events import notices, schema
from gpu_engine.events.rank_view import RankView
from gpu_engine.events.reader import Tail
from gpu_engine.plan import own_command
from gpu_engine.runs import job
from gpu_engine.runs.folder import AttemptRecord, Cause, Run, Rung, State, StateName
from gpu_engine.runs.state import MADE_ROOM, MAKES_ROOM
from gpu_engine.spec.schema import parse_best
from gpu_engine.supervisor import hang_watch, logs, ranks, start, stopping
from gpu_engine.supervisor.attempt import LINGER, Attempt, Verdict, named
from gpu_engine.supervisor.cause import oom_kills
from gpu_engine.supervisor.children import (
    STOPS,
    Child,
    asked_to_end,
    become_subreaper,
    kill_tree,
    reap,
    wait_for_signal,
)
from gpu_engine.supervisor.device_record import DeviceRecord
from gpu_engine.supervisor.printed import Printed
from gpu_engine.supervisor.ranks import RankState
from gpu_engine.supervisor.stopping import Stopping

_HEARD = (signal.SIGCHLD, *STOPS)
_OWN_END = 1.0
"""Seconds that the ranks of a script get, after another has failed, to fail of themselves."""
_OTHERS = 2.0
"""Seconds that what a command has left running gets to end by itself."""
_WAKE_GRACE = 5.0
"""Seconds that ranks get to end by themselves after another has failed, or after a save that was
allowed to take longer."""
_TOGETHER = 5.0
"""Seconds within which the time of a run is up on all its machines."""
_BUSY = 0.1
"""Seconds between two checks while something is going on."""
_PRINTED = 0.2
"""The same where printed values get the step that is known then."""
_MOST_ATTEMPTS = 50


class Compare(Protocol):
    """Compares a run with the others of its sweep: see `sweep.rungs`, which this room can't
    import."""

    @property
    def next(self) -> float | None: ...

    def __call__(self, state: State, ranks: Iterable[RankView], ends: bool = ...,
                 heard: float | None = ..., skew: float = ..., /) -> Rung | None: ...


class Way(Protocol):
    """Looks at whether the run makes room for others (run.give_way): see `queue.give_way`, which
    this room can't import."""

    def __call__(self, devices: DeviceRecord, began: float, saved: bool, /) -> str | None:
        """For whom it makes room now, to follow "made room for"; None: for nobody. `began`: when
        the attempt did, Unix seconds. `saved`: whether it has since. Raises OSError."""

    def stand(self) -> None:
        """Have the run wait again, from its old place. Raises OSError."""

    def leave(self) -> None:
        """Have it wait no longer. Raises OSError."""


Beside = Callable[[int], "Cause | None"]
"""Why an attempt, by its number, can't go on: what the supervisor of another node has met. See
`on_node.nodes`, which this room can't import."""

log = logging.getLogger(__name__)


class Supervisor:
    """Supervises one run, or what one node of a Slurm job has of it. `umask`: that of its
    processes. `compare`: with what it may be stopped before its end. `beside`: looks at the other
    nodes. `way`: for whom it makes room. Raises UserError if its plan can't be read."""

    def __init__(self, run: Run, umask: int, compare: Compare | None = None,
                 beside: Beside | None = None, way: Way | None = None) -> None:
        self.run, self.umask, self.compare, self.beside = run, umask, compare, beside
        self.way = way
        self.room_for: str | None = None
        """For whom it makes room: its ranks were told to save, and it waits again."""
        whole = run.require_plan()  # of a run on several nodes it says what is on the others, too
        self.plan = replace(whole, ranks=tuple(r for r in whole.ranks if r.host is None),
                            processes=tuple(p for p in whole.processes if p.host is None))
        spec = whole.spec
        self.is_task = spec.task.use is not None
        self.direct = bool(spec.task.command) \
            and not own_command.launches_itself(spec.task.command)
        """Whether the processes that are ranks are a person's own script."""
        self.hang_timeout = spec.train.hang_timeout
        self.stop_asked = False
        self.heard = False
        """Whether a signal has asked for that."""
        self.stopped_by: str | None = None
        """Who sent the signal to stop, if it was not one of our programs."""
        self.limit = spec.run.limit
        self.up_at: float | None = None
        """When its time is up, monotonic seconds: a clock that is set lengthens no run."""
        self.first_said: float | None = None
        """When the first line came that says a step, Unix seconds."""
        self.unseen = False
        """Whether the limit counts from the start of the ranks as no step was seen."""
        self.time_up = False
        """Whether it was stopped as its time was up."""
        self.busy = False
        self.checked = False
        """Whether it is known that nobody else is on the devices."""
        pid = os.getpid()
        self.state: State = replace(run.state(), state="starting", pid=pid,
                                    ticks=procs.start_ticks(pid), boot=procs.boot_id(),
                                    started=time.time(), until=None)
        if self.limit and spec.run.halving and self.is_task and self.state.rungs:
            self.limit *= 1 - self.state.rungs[-1].share  # the rest is behind its checkpoint
        if self.limit and (here := job.here()) is not None and here.restarts:
            # Slurm has begun the job again, and not a person the run: its time goes on.
            self.limit = max(self.limit - _trained(self.state.attempts, here.restarts), 1.0)
        elif self.limit and way is not None:  # nor has a person begun one again that made room
            self.limit = max(self.limit - _before(self.state), 1.0)

    def supervise(self, leases: Leases | None = None) -> State:
        """Run attempts until one completes or is stopped, or no restart is left. Returns the final
        state, or that of a run which has made room and waits again. `leases`: of the devices of a
        run that has waited for them, and has just seen that nobody is on them."""
        self.checked = leases is not None
        become_subreaper()
        for folder in (self.run.own, self.run.own / "ranks"):
            if not folder.is_symlink():
                files.remove_temporary(folder)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # if it were ignored, none would arrive
        signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
        try:
            leases = leases or start.acquire(self.plan, self.plan.whole, self._wait_for_room)
        except UserError as err:
            if asked_to_end():  # while it waited for another to make room
                self._set_state("stopped", ended=time.time(), exit_code=130,
                                reason="before its ranks started")
            else:
                self._set_state("failed", ended=time.time(), exit_code=1, reason=str(err),
                                cause=Cause(str(err), taken=True))
            return self.state
        with leases:
            return self._attempts()

    def _attempts(self) -> State:
        first = number = self.state.attempt  # above 1 for a resumed run
        restarts = self.plan.spec.train.restarts
        while True:
            self._begin(number)
            try:
                outcome, reason, cause = self._attempt(number)
            except Exception as err:
                log.exception("attempt %d", number)
                kill_tree(())
                outcome, cause = "failed", None
                reason = f"the supervisor failed: {err!r}; see supervisor.log"
            if self.room_for is not None and outcome == "stopped" and not self.heard:
                self._record(number, MADE_ROOM, reason)
                self._set_state("queued", attempt=number + 1, reason=reason, processes=(),
                                until=None)
                return self.state
            self._record(number, outcome, reason)
            delay = min(2.0 ** (number - first), 30.0)
            if outcome != "failed" or number - first >= restarts or self.stop_asked \
                    or (self.up_at or math.inf) <= time.monotonic() + delay:
                break
            log.info("attempt %d failed (%s); again in %.0f s", number, reason, delay)
            self._set_state("starting", again=time.time() + delay,
                            reason=f"attempt {number} failed: {reason}; again in {delay:.0f} s")
            waited = self._pause(delay)
            self.state = replace(self.state, again=None)
            if not waited:
                outcome, reason = "stopped", f"stopped while waiting after attempt {number} failed"
                break
            number += 1
        if self.room_for is not None and self.way is not None:
            self.way.leave()  # it has ended all the same
        code = {"completed": 0, "stopped": 130, "failed": 1}[outcome]
        self._set_state(outcome, ended=time.time(), exit_code=code, reason=reason, cause=cause)
        return self.state

    def _begin(self, number: int) -> None:
        # The changes of a resume are recorded with its first attempt.
        record = AttemptRecord(number, time.time(), changed=self.state.changed,
                               requeued=here.restarts if (here := job.here()) else None)
        self.state = replace(
            self.state, state="starting", attempt=number, processes=(), cause=None, reason=None,
            changed=(), warnings=(),
            attempts=(*self.state.attempts, record)[-_MOST_ATTEMPTS:])
        self._write(settled=False)  # no rank waits for the disk; the next state is on its way

    def _record(self, number: int, outcome: str, reason: str | None) -> None:
        """Record how an attempt ended. It is written to disk with the next state."""
        *before, last = self.state.attempts
        last = replace(last, ended=time.time(), outcome=outcome, reason=reason)
        self.state = replace(self.state, attempts=(*before, last))

    # --- one attempt ---------------------------------------------------------------------------

    def _attempt(self, number: int) -> Verdict:
        attempt = Attempt(number)
        blocked = None if self.checked else start.blocked(
            self.plan, again_on_them=bool(self.state.attempts[:-1]))
        self.checked = False
        if asked_to_end():
            self.stop_asked = True
            return "stopped", "before its ranks started", None
        if blocked is not None:
            log.warning("attempt %d: %s", number, blocked)
            return "failed", blocked, Cause(blocked, taken=True)
        oom_before = oom_kills()
        if number > 1:  # before what is printed is read
            for process in self.plan.processes:
                logs.note(self.run.path / (process.log or "ranks/00000.log"),
                          f"--- attempt {number} ---")
        self.printed = Printed.of(self.run, self.plan)
        failed = start.start(self.run, self.plan, attempt, direct=self.direct, umask=self.umask)
        if failed is not None:
            kill_tree(attempt.children)
            return "failed", failed.message, failed
        self._set_state("running", processes=attempt.processes())
        self.watch = hang_watch.Watch(self.run, self.hang_timeout)
        devices = attempt.devices = DeviceRecord(self.run, self.plan.source,
                                                 start.devices_of(self.plan))
        while attempt.going_on:
            self._handle(attempt, self._wait(attempt))
            self._check(attempt)
            self._watch_time(attempt)
            self._watch_rungs(attempt)
            self._watch_way(attempt)
            self._look_beside(attempt)
            if (elsewhere := devices.sample()) is not None:
                ranks.append(self.run, attempt.children[0].ranks[0], elsewhere)
        if not self.is_task and attempt.stopping is None \
                and all(c.status == 0 for c in attempt.children):
            attempt.left = _left_running(attempt)
            if attempt.left:
                ranks.append(self.run, attempt.children[0].ranks[0], schema.Warning(
                    "what the command has left running was ended with it: "
                    f"{named(attempt.left)}"))
        devices.close()
        reap(attempt.children, attempt.orphans)  # what has ended by itself, before others are ended
        attempt.ended_by_us = set(attempt.below())
        left = kill_tree(attempt.children, attempt.orphans)
        if left:
            log.error("could not end: %s", left)
        elif not self.run.node:  # nobody writes there any more
            files.remove_unfinished(self.run.checkpoints)
        # Nobody writes any more: all that there is to judge by is there now.
        while self._read_printed(attempt, over=True):
            pass
        self._read(attempt)
        self._watch_rungs(attempt)  # those that it has passed since
        self.state = replace(self.state, processes=attempt.processes())
        now = oom_kills()
        counted = None if now is None or oom_before is None else now - oom_before
        verdict = attempt.judge(self.run, self.plan, is_task=self.is_task,
                                stop_asked=self.stop_asked, time_up=self._time_up(attempt),
                                oom_kills=counted)
        why = self.state.loses or (self.stopped_by and f"asked to stop {self.stopped_by}") \
            or (self.room_for and f"made room for {self.room_for}")
        if verdict[0] == "stopped" and why:
            verdict = ("stopped", f"{why}; {verdict[1]}" if verdict[1] else why, None)
        if attempt.beside is not None:  # what our ranks met by it is no cause
            verdict = ("failed", attempt.beside.line, attempt.beside)
        if self.printed and verdict[0] == "completed" and (missing := self.printed.missing()):
            ranks.append(self.run, 0, notices.not_printed(missing))
            self._read(attempt)
        if verdict[0] == "completed" and (lacks := self._without_best(attempt)) is not None:
            ranks.append(self.run, 0, lacks)
            self._read(attempt)
        if not self.is_task:
            if self.limit and self.up_at is None \
                    and time.time() - self.state.began >= self.limit:
                ranks.append(self.run, 0, notices.no_limit(self.limit))
            ranks.write_ends(self.run, attempt.events, attempt.children, attempt.orphans,
                               self.stop_asked)
            self._read(attempt)
        self._notice(attempt, completed=verdict[0] == "completed" and not self.time_up)
        return verdict

    def _read(self, attempt: Attempt, *, to_the_end: bool = True) -> None:
        """Read the ranks' new events. A script may have ranks that are not in the plan, unless that
        has those of this node alone."""
        if not self.is_task and self.beside is None:
            for rank in set(self.run.ranks()) - set(attempt.events):
                attempt.events[rank] = RankState(rank, Tail(self.run.events(rank)), attempt.number)
        for seen in attempt.events.values():
            seen.read(to_the_end=to_the_end)

    def _check(self, attempt: Attempt) -> None:
        """Do the checks that are due again and again while ranks run."""
        self._read(attempt, to_the_end=False)
        self._read_printed(attempt)
        if self._notice(attempt):
            self._write()
        if attempt.stopping is not None:
            attempt.stopping.advance(attempt.children, attempt.events)
        for child in attempt.children:
            if self.direct and child.role == "rank":
                ranks.warn_unseen(self.run, child, attempt.events[child.ranks[0]])
        self.watch.say_what_silent_ranks_do(attempt.events)
        if self.hang_timeout and attempt.deadline is None and (
                attempt.running_children or attempt.stopping is None):
            attempt.hang = self.watch.judge(attempt.events)
            if attempt.hang is not None:
                self._kill(attempt, attempt.hang.message)
        if not self.run.node:
            self.busy = logs.bound_all(self.run.path, self.plan.spec.run.log_mb << 20)

    def _read_printed(self, attempt: Attempt, *, over: bool = False) -> bool:
        """Record the values that rank 0 has printed since the last time (run.metrics). Returns
        whether there was more to read."""
        if self.printed is None:
            return False
        events = self.printed.read(attempt.events[0].view.step, over=over)
        for event in events or ():
            if self.first_said is None and isinstance(event, schema.Metric) \
                    and event.step is not None:
                self.first_said = event.t
            ranks.append(self.run, 0, event)
        return events is not None

    def _without_best(self, attempt: Attempt) -> schema.Warning | None:
        """That no rank has given the value of run.best, if it has one. Rank 0 may be elsewhere."""
        run = self.plan.spec.run
        best, patterns = parse_best(run.best), run.metrics if isinstance(run.metrics, dict) else {}
        if best is None or best[0] in patterns or 0 not in attempt.events:
            return None
        views = [s.view for s in attempt.events.values()]
        names = dict.fromkeys(name for v in views for name in (
            *(["loss"] if v.loss is not None else []), *v.evaluations, *v.metrics))
        return None if best[0] in names else notices.no_best(run.best or "", list(names))

    def _watch_time(self, attempt: Attempt) -> None:
        """Ask the ranks to stop once the time of the run is up. It is counted from the first step
        that any rank has made or said, over all attempts of this supervisor; of a command without
        torch that shows none until the time would be up, or the run be compared, from the start of
        its ranks. With torch the first step may take as long as it likes, as to compile."""
        if self.limit is None or self.stop_asked:
            return
        if self.up_at is None:
            steps = [s.view.step_times[0][0] for s in attempt.events.values()
                     if s.view.step_times]
            steps += [] if self.first_said is None else [self.first_said]
            begun = self.state.began if self.plan.spec.run.limit_from == "start" \
                else min(steps, default=None)
            share = self._first_share() or 1.0
            if begun is None and not self.is_task \
                    and not (self.run.path / ranks.WITH_TORCH).exists() \
                    and time.time() >= self.state.began + self.limit * share:
                begun, self.unseen = self.state.began, True
            if begun is not None:
                left = max(begun + self.limit - time.time(), 0.0)
                self.up_at = time.monotonic() + min(left, self.limit)
                self._set_state(self.state.state, until=begun + self.limit)
        elif time.monotonic() >= self.up_at:
            self.time_up = True
            self._request_stop(attempt)

    def _first_share(self) -> float | None:
        """The share of its budget at which the run is compared next; None: it is not. About that of
        a part: it is compared where the whole is held together."""
        run = self.plan.spec.run
        if self.compare is not None:
            return self.compare.next
        return None if self.plan.part_of is None else run.halving ** -2 if run.halving \
            else 0.25 if run.stop_worse else None

    def _watch_rungs(self, attempt: Attempt) -> None:
        """Record where the run stood at each rung that it has got to, and stop it there if it shall
        not go on."""
        views = [s.view for s in attempt.events.values()]
        ends = not attempt.running_children or attempt.deadline is not None
        while self.compare is not None and not self.stop_asked \
                and (rung := self.compare(self.state, views, ends)) is not None:
            self._set_state(self.state.state, rungs=(*self.state.rungs, rung))
            if rung.why:
                self._request_stop(attempt)

    def _watch_way(self, attempt: Attempt) -> None:
        """Have the ranks save and the run wait again once it is to make room."""
        if self.way is None or self.stop_asked or attempt.devices is None \
                or attempt.deadline is not None:
            return
        saved = any(s.view.checkpoint_step is not None for s in attempt.events.values())
        try:
            whom = self.way(attempt.devices, self.state.began, saved)
            if whom is None:
                return
            # First: killed from here on, the run waits, and goes on from what it has saved.
            self.way.stand()
        except OSError as err:  # must not end training
            log.error("it can't make room: %s", err)
            return
        log.info("it makes room for %s", whom)
        self.room_for = whom
        self._request_stop(attempt, why=f"{MAKES_ROOM}{whom}")

    def _look_beside(self, attempt: Attempt) -> None:
        """End the attempt once another node has failed it: its ranks wait for those in vain, with
        NCCL for minutes."""
        if self.beside is None or attempt.stopping is not None or attempt.beside is not None:
            return
        attempt.beside = self.beside(attempt.number)
        if attempt.beside is not None:
            attempt.bad = True
            self._limit(attempt, _WAKE_GRACE)
            for child in attempt.running_children:
                child.signal(signal.SIGTERM)

    def _time_up(self, attempt: Attempt) -> str | None:
        """If the ranks were stopped as the time was up, this in words. The ranks of other machines
        may have seen it first: all stop at the same step."""
        if self.limit is None or self.up_at is None or (self.stop_asked and not self.time_up) \
                or time.monotonic() < self.up_at - _TOGETHER:
            return None
        steps = [s.view.step for s in attempt.events.values() if s.view.step is not None]
        unseen = ", counted from the start of its ranks, as no step was seen" \
            + ("" if self.printed else " (those that are printed are with --metric auto)")
        return f"time was up after {units.clock(self.plan.spec.run.limit)}" \
            + (f" at step {min(steps):,}" if steps else "") + (unseen if self.unseen else "")

    def _notice(self, attempt: Attempt, *, completed: bool = False) -> bool:
        """Put what there is to tell of the run into its state. Returns whether that is new."""
        goes_on = self.plan.spec.train.on_nonfinite == "continue"
        warnings = ranks.notices_of(
            attempt.events, losses=goes_on or not self.is_task, completed=completed,
            shell=own_command.in_shell(self.plan.spec.task.command or ()))
        *before, last = self.state.attempts
        begins = [step for s in attempt.events.values()
                  if (step := s.run_view.begins.get(attempt.number)) is not None]
        if last.first_step is None and begins:
            last = replace(last, first_step=min(begins))
        now = replace(self.state, warnings=warnings, attempts=(*before, last))
        new, self.state = now != self.state, now
        return new

    def _wait(self, attempt: Attempt) -> tuple[int, int] | None:
        """The next signal and its sender; None: there is none within the time that is set here."""
        timeout = _BUSY if attempt.stopping or self.watch.waiting or self.busy else \
            _PRINTED if self.printed is not None or self.compare is not None else 1.0
        if attempt.deadline is not None:
            timeout = max(0.0, min(timeout, attempt.deadline - time.monotonic()))
        elif self.up_at is not None and attempt.stopping is None:
            timeout = max(0.0, min(timeout, self.up_at - time.monotonic()))
        return wait_for_signal(_HEARD, timeout)

    def _handle(self, attempt: Attempt, got: tuple[int, int] | None) -> None:
        number = None if got is None else got[0]
        if got is not None and number != signal.SIGCHLD and not self.stop_asked:
            # At once: a `kill` is gone in a moment. Those of a job all come through Slurm, also
            # that of `gpu-engine stop`.
            self.stopped_by = stopping.sender(got[1]) if job.here() is None \
                else None if job.asked_to_stop(self.run.path) else job.BY_SLURM
        ended = reap(attempt.children, attempt.orphans)
        if ended:
            self._note_ends(attempt, ended)
        if number == signal.SIGQUIT:
            self.stop_asked = self.heard = True
            attempt.at_once = True
            self._kill(attempt, "asked to end now")
        elif number in STOPS:
            self._request_stop(attempt, again=self.heard and number == signal.SIGINT)
            self.heard = True
        if attempt.deadline is not None and time.monotonic() >= attempt.deadline \
                and attempt.going_on and not self._let_save(attempt):
            if attempt.stopping is not None and attempt.stopping.press_on():
                log.info("time is up: SIGTERM to what still runs")
                attempt.pressed = "run.grace was over"
                attempt.deadline = time.monotonic() + _WAKE_GRACE
            else:
                self._kill(attempt, "time is up")

    def _note_ends(self, attempt: Attempt, ended: list[Child]) -> None:
        for child in ended:
            log.info("rank %s (pid %d) ended with %s", ",".join(map(str, child.ranks)), child.pid,
                     child.status)
        self._read(attempt)
        if not self.is_task:
            ranks.write_ends(self.run, attempt.events, ended, attempt.orphans, self.stop_asked,
                               over=False)
        self.state = replace(self.state, processes=attempt.processes())
        if attempt.running_children and attempt.stopping is None:
            bad = any((c.status != 0 and not attempt.after_end(c))
                      or (self.is_task and attempt.too_early(c)) for c in ended)
            if bad or self.is_task:
                self._limit(attempt, _WAKE_GRACE if bad else LINGER)
            if bad:
                attempt.bad = True
                if not self.is_task:  # SIGTERM ends a script before it can say which error it met
                    _await_ends(attempt.running_children, _OWN_END)
                for child in attempt.running_children:
                    child.signal(signal.SIGTERM)
        if attempt.going_on:  # else the run's end is written in a moment
            self._write()

    def _request_stop(self, attempt: Attempt, *, again: bool = False, why: str | None = None
                      ) -> None:
        """Tell the ranks to finish their step and save; a person's own command, what it makes of
        the signal. `again`: it was told, and gets SIGTERM. `why`: the reason of the state."""
        self.stop_asked = True
        if attempt.stopping is not None:
            if again and attempt.stopping.press_on():
                attempt.pressed = "it was stopped a second time"
            return
        attempt.stopping = Stopping(self.plan.stop_signal)
        # A save that was allowed to take longer before had another reason.
        attempt.late = attempt.leaving = False
        attempt.save_until = math.inf
        self._limit(attempt, self.plan.spec.run.grace)
        self._set_state("stopping", reason=why)
        self._read(attempt)
        attempt.stopping.advance(attempt.children, attempt.events)

    def _let_save(self, attempt: Attempt) -> bool:
        """Give ranks more time if they are writing a checkpoint, or have completed and only end
        slowly. Returns whether they get it. A script may write whatever it likes for ever, so it
        gets `run.grace_most` for all of it."""
        self._read(attempt)
        if attempt.stopping is None and self.is_task and attempt.only_leaving:
            attempt.deadline = None
            return True
        savers = stopping.saving(attempt.events.values())
        if not savers and not (attempt.stopping and not self.is_task
                               and attempt.stopping.writing()):
            if not attempt.late or attempt.leaving:
                return False
            attempt.leaving = True  # saved; ending takes another moment
            attempt.deadline = time.monotonic() + _WAKE_GRACE
            return True
        run, now = self.plan.spec.run, time.monotonic()
        if not self.is_task and not attempt.late:
            attempt.save_until = now + run.grace_most
        if now >= attempt.save_until:
            return False
        attempt.leaving = False
        attempt.deadline = min(now + 1.0, attempt.save_until)
        if not attempt.late:
            attempt.late = True
            what = f"rank {savers[0].rank} is still writing a checkpoint" if savers \
                else "its ranks still write to disk, as in saving,"
            log.info("%s and may finish it", what)
            beyond = f"beyond run.grace = {run.grace:g} s"
            if attempt.stopping is None:
                beyond = f"though {attempt.ended_ranks} ended"
            end = "as long as it grows" if self.is_task \
                else f"for {units.clock(run.grace_most)} at most (run.grace_most)"
            self._set_state(self.state.state, reason=f"{what} and may finish it {beyond}, {end}; "
                            f"gpu-engine stop --now {self.plan.whole} ends it")
        return True

    @staticmethod
    def _limit(attempt: Attempt, seconds: float) -> None:
        end = time.monotonic() + seconds
        attempt.deadline = end if attempt.deadline is None else min(end, attempt.deadline)

    def _kill(self, attempt: Attempt, why: str) -> None:
        log.warning("killing what is left: %s", why)
        attempt.forced = True
        for child in attempt.running_children:
            child.killed = True
        kill_tree(attempt.children)
        attempt.deadline = time.monotonic() + 60  # if it can't be killed, try again in a minute

    # --- state ---------------------------------------------------------------------------------

    def _set_state(self, name: StateName, **changes: Any) -> None:
        self.state = replace(self.state, state=name, **changes)
        self._write()

    def _write(self, *, settled: bool = True) -> None:
        try:
            self.run.write_state(self.state, settled=settled)
        except OSError as err:
            log.error("state.json can't be written: %s", err)  # must not end training

    def _wait_for_room(self, whom: str) -> bool:
        """Say that the run waits for another to make room. Returns whether a stop is asked for."""
        reason = f"waits for {whom}"
        if reason != self.state.reason:
            self._set_state("starting", reason=reason)
        return asked_to_end()

    def _pause(self, seconds: float) -> bool:
        """Wait for `seconds`. Returns False if a signal to stop came meanwhile."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            got = wait_for_signal(_HEARD, left)
            if got is not None and got[0] != signal.SIGCHLD:
                self.stop_asked = True
                return False
            reap(())
        return True


def _trained(attempts: Sequence[AttemptRecord], restarts: int) -> float:
    """Seconds for which the attempts of the job that has been requeued so often were running. One
    that Slurm has killed has left no end."""
    begin = next((i for i in range(len(attempts) - 1, -1, -1) if attempts[i].requeued == 0), 0)
    return sum((a.ended or a.started) - a.started for a in attempts[begin:]
               if (a.requeued or 0) < restarts)


def _before(state: State) -> float:
    """Seconds that the last attempts took which have all made room, and after which no person has
    begun it again: a stop while it waited has used up a number."""
    took, number = 0.0, state.attempt
    for attempt in reversed(state.attempts):
        number -= 1
        if (attempt.number, attempt.outcome) != (number, MADE_ROOM):
            break
        took += (attempt.ended or attempt.started) - attempt.started
    return took


def _left_running(attempt: Attempt) -> dict[int, str]:
    """What the command has left running at its end, after a moment to end by itself, as what has
    read its output needs: pid and program."""
    end = time.monotonic() + _OTHERS
    while (below := attempt.below()) and time.monotonic() < end:
        reap(attempt.children, attempt.orphans)
        time.sleep(0.05)
    return {pid: procs.program(pid) for pid in below}


def _await_ends(children: Sequence[Child], seconds: float) -> None:
    """Wait until these processes have ended, without reaping them; `seconds` at most."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None
            for child in children):
        time.sleep(0.02)
