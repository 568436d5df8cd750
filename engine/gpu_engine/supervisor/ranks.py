"""What the supervisor knows of the ranks of one attempt: what their own events say, what is told of
the run by that, and how the ranks of a person's own command are judged.

The exit status of the process that a command was started as decides how it ended. The ranks' events
show which rank failed first.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_engine.common import floors
from gpu_engine.common.errors import with_type
from gpu_engine.diagnose.hangs import Standstill
from gpu_engine.events import notices, schema, writer
from gpu_engine.events.rank_view import RankView
from gpu_engine.events.reader import Tail
from gpu_engine.events.view import RunView
from gpu_engine.runs.folder import Run
from gpu_engine.runs.state import Notice
from gpu_engine.supervisor.cause import Failure, crash_in
from gpu_engine.supervisor.children import Child

_AT_ONCE = 1 << 23
"""Bytes to read at once while the ranks run, as the supervisor must also react to signals."""
UNSEEN = 30.0
"""Seconds after which a process without events is warned about: starting Python may take long."""
SEEN, WITH_TORCH = "python-seen", "torch-seen"
"""The hook creates files of these names in the run folder when a Python of the command loads it,
and when one imports torch."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class RankState:
    """One rank. Its events are read all the time, so that the end of a long run needs no long
    reading."""

    rank: int
    tail: Tail
    attempt: int
    begun: bool = False
    """Whether it has written the start event of this attempt."""
    ours: bool = False
    """Whether the events that come now belong to this attempt."""
    started: float = field(default_factory=time.monotonic)
    """Monotonic seconds."""
    warned: bool = False
    """Whether it was warned that it has no events; see `warn_unseen`."""
    judged: bool = False
    """Whether that was checked after its end."""
    moved: float = 0.0
    """When its step, phase or detail last changed, monotonic seconds."""
    heard: float = 0.0
    """When its last event was read, monotonic seconds."""
    run_view: RunView = field(default_factory=RunView)
    """What its events of this attempt say, as a run of this rank alone."""

    def __post_init__(self) -> None:
        self.run_view.add((self.rank,))

    @classmethod
    def from_now(cls, rank: int, tail: Tail, attempt: int) -> RankState:
        """For a rank that is about to be started: the events in its file so far are skipped, as
        they belong to earlier attempts."""
        tail.skip()
        return cls(rank, tail, attempt, ours=True)

    @property
    def view(self) -> RankView:
        """What its events of this attempt say."""
        return self.run_view.ranks[self.rank]

    def read(self, *, to_the_end: bool = True) -> None:
        """Read the new events, all of them or a bounded amount."""
        limit = self.tail.offset + _AT_ONCE
        while to_the_end or self.tail.offset < limit:
            before = self.tail.offset
            for event in self.tail.read():
                self.fold(event)
            if self.tail.offset == before:
                return

    def fold(self, event: schema.Event) -> None:
        """Take in one event."""
        if isinstance(event, schema.Start):
            self.begun = self.ours = event.attempt == self.attempt
        elif not self.ours:
            return
        before = self._place()
        self.run_view.fold(self.rank, event)
        if self.ours and not isinstance(event, schema.Quiet):
            self.heard = time.monotonic()
            if self._place() != before:
                self.moved = self.heard

    def _place(self) -> tuple[object, ...]:
        """The values that change when the rank moves. A growing checkpoint counts like a step; a
        rank that waits for another reports the other's progress in `detail`."""
        view = self.view
        return view.at_step, view.phase, view.phase_since, view.written, view.detail

    def still_saving(self, now: float, patience: float) -> bool:
        """Whether a checkpoint is being written and has grown within `patience` seconds."""
        return self.view.saving and not self.view.ended and now - self.moved < patience

    def standing(self, now: float) -> Standstill:
        """For how long it has stood still. `now`: monotonic seconds."""
        view = self.view
        return Standstill(self.rank, view.at_step, view.phase, now - self.moved, now - self.heard)


def notices_of(events: Mapping[int, RankState], *, losses: bool, completed: bool = False,
               shell: bool = False) -> tuple[Notice, ...]:
    """Everything there is to tell now, each kind once, the worst first. `losses`: whether a loss
    that is not finite is told of; a task may be told to end at one, or to leave it out.
    `completed`: whether the run has ended well, by its command's exit status. `shell`: whether that
    is a shell's."""
    views = [(rank, seen.run_view) for rank, seen in sorted(events.items())]
    told: dict[str, Notice] = {}
    # A command may end well although a rank of it did not: only here is that said.
    ended = [seen.view for _, seen in sorted(events.items()) if completed and seen.begun]
    cure = (notices.IN_SHELL,) if shell else ()
    if failed := [(v.error.t, v) for v in ended if v.error is not None]:
        _, first = min(failed, key=lambda one: one[0])
        assert first.error is not None
        what = with_type(first.error.type, first.error.message.partition("\n")[0])
        told[notices.RANK_LOST] = Notice(
            notices.RANK_LOST, notices.failed(first.rank, what, first.error.step), cure, first.rank)
    elif gone := {v.rank: v.at_step or 0 for v in ended if v.outcome is None}:
        told[notices.RANK_LOST] = Notice(
            notices.RANK_LOST, notices.gone(gone), cure, min(gone))
    bad = [(view.bad_step[0], rank) for rank, view in views if view.bad_step is not None]
    if bad and losses:
        step, rank = min(bad)
        told[notices.NONFINITE] = Notice(
            notices.NONFINITE, notices.nonfinite(step, rank), rank=rank, step=step)
    for _, view in views:
        for code, (rank, warning) in view.told.items():
            # Of what several ranks warn of, the first rank speaks for all.
            told.setdefault(code, Notice(code, warning.message, warning.cure, rank))
    return tuple(sorted(told.values(), key=lambda one: notices.ORDER.index(one.code)
                        if one.code in notices.ORDER else len(notices.ORDER)))


# --- the ranks of a person's own command ---------------------------------------------------------

def failed_below(events: Mapping[int, RankState], children: Sequence[Child],
                 told: Mapping[int | None, int], ended_by_us: Collection[int],
                 log_of: Callable[[int], str]) -> list[Failure]:
    """How ranks have failed that something else of the run has started, if that has failed, too.
    One that began, and wrote neither an error nor an end, was killed. `told`: exit statuses by pid,
    as far as they are known, and under None that of one process without a pid. `ended_by_us`: the
    pids of those that still ran when the command had ended. `log_of` gives the end of the log in
    which a rank has written."""
    bad = [c for c in children if c.status != 0 and not c.killed]
    ours = {c.pid for c in children}
    below = [s for s in events.values() if bad and s.begun and s.view.pid not in ours]
    silent = [s for s in below if s.view.error is None and not s.view.ended
              and s.view.pid not in told and s.view.pid not in ended_by_us]
    failures = []
    for seen in below:
        view = seen.view
        status = told.get(view.pid, told.get(None) if silent == [seen] else None)
        if view.error is not None:
            status = 1
        elif view.ended:  # it may have said with what
            status = view.exit if status is None or status < 0 else status
        elif seen not in silent and status is None:
            continue
        if status is None and seen in silent:
            status = crash_in(log_of(seen.rank))
        if status != 0 and not (view.ended and status is None):
            # Native code says there why it ends a process; who is killed says nothing.
            crashed = (status or 0) < 0 and -(status or 0) not in (signal.SIGKILL, signal.SIGTERM)
            failures.append(Failure(seen.rank, status, view.beat or bad[0].ended or time.time(),
                                    view.error, log_of(seen.rank) if crashed else ""))
    return failures


def write_ends(run: Run, events: Mapping[int, RankState], children: Sequence[Child],
               orphans: Mapping[int, int], stop_asked: bool, *, over: bool = True) -> None:
    """Write the end event of each rank, which can't know its exit status itself. `orphans`: the
    exit statuses of those whose command had ended before. `over`: whether all have ended; else only
    those get one that are `children` themselves and have exited with 0, which ends no other. One
    that has not reached its own end below a command that ended well gets none: it may have been
    killed."""
    for rank, seen in events.items():
        view = seen.view
        child = next((c for c in children if rank in c.ranks), children[0])
        itself = view.pid == child.pid
        if not seen.begun or view.outcome is not None or not (
                over or (itself and child.status == 0)):
            continue
        # By what is surest: after a stop any end is one; then what the rank has said itself, and
        # last the exit status of the process that it is below.
        late = orphans.get(view.pid or 0)
        if stop_asked and (view.error is None or view.error.type == "KeyboardInterrupt"):
            outcome = "stopped"
        elif view.error is not None:
            outcome = "failed" if child.status != 0 or not itself else "completed"
        elif late is not None:
            outcome = "failed" if late else "completed"
        elif view.ended and not itself:
            outcome = "completed"
        elif child.status != 0:
            outcome = "failed"
        elif itself or child.role == "launcher":
            outcome = "completed"
        else:
            continue
        append(run, rank, schema.End(outcome, steps=None, seconds=None))


def warn_unseen(run: Run, child: Child, seen: RankState) -> None:
    """Write a warning if a process has no events, with the likely reason. This is checked once
    after `UNSEEN` seconds, while the process runs, and once after its end."""
    late = time.monotonic() - seen.started > UNSEEN
    if seen.begun or seen.judged or seen.warned or (child.running and not late):
        return
    seen.read()
    hooked = (run.path / SEEN).exists()
    if seen.begun or (child.running and hooked):
        return  # it has not trained yet
    seen.judged, seen.warned = not child.running, child.running
    if child.status:
        return  # its output says why, or it was ended before its Python had begun
    why = "it neither called backward() nor stepped a torch optimizer"
    if not hooked:
        why = f"{'so far ' * child.running}no Python of it has loaded gpu-panel's hook: it is no " \
            f"Python program, its Python is older than {'.'.join(map(str, floors.PYTHON))}, was " \
            "started with -S, -I or -E, or with another PYTHONPATH"
    append(run, child.ranks[0], schema.Warning(
        f"only the output of this process can be shown: {why}"))


def append(run: Run, rank: int, event: schema.Event) -> None:
    """Write an event into a rank's record, beside its own. An error is logged."""
    try:
        writer.append(run.events(rank), event)
    except OSError as err:
        log.warning("rank %d: %s", rank, err)
