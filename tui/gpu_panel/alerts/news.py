"""What has happened to runs since the panel opened. Blocks: called in a thread, one call at a time.

Runs are looked at whichever screen is shown. Of a run that does not train, as one that waits in a
queue or has ended, only the time stamp of its state is looked at, so that a thousand of them cost
little.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from gpu_engine.common import paths
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import locked
from gpu_engine.notify.watch import Happened, RunWatch
from gpu_engine.places.verbs import Followed
from gpu_engine.runs import digest, job, sweep, waiting
from gpu_engine.runs.folder import Run, each_run
from gpu_engine.runs.sweep import Member

TOLD = frozenset({"finished", "failed", "stalled", "lost"})
"""Who has stopped a run knows that it is stopped."""


@dataclass(frozen=True, slots=True)
class News:
    run: Run
    name: str
    happened: Happened
    sweep: str | None = None
    """What has become of the sweep that it is a member of, if that is told instead of it."""
    good: bool = False
    """Whether all members of the sweep have completed."""


class _Followed:
    def __init__(self, run: Run, *, awake: bool) -> None:
        self.run = run
        self.watch = RunWatch(run, goes_on=Followed(run)) if awake else None
        """None: nothing can happen to it before the time stamp of its state changes."""
        self.stamp = _stamp(run)
        self._told = frozenset[str]()

    def look(self) -> Happened | None:
        before, self.stamp = self.stamp, _stamp(self.run)
        if self.watch is None and self.stamp != before:
            self.watch = RunWatch(self.run, self._told, goes_on=Followed(self.run))
        if self.watch is None:
            return None
        happened, state = self.watch.next_event(), self.watch.state
        if state is None or state.state == "queued" or (not state.live and self.watch.is_over()):
            self._told, self.watch = self.watch.told, None  # Slurm is heard of its end later
        return happened


class RunsNews:
    def __init__(self) -> None:
        self._followed: dict[str, _Followed] = {}
        self._known: set[str] | None = None
        """All ids in the folder when it was listed last; None before the first time."""
        self._listed: int | None = None
        self._waits: set[str] = set()
        """The sweeps whose end is to be told, as a member has ended by itself."""
        self._asking: dict[str, tuple[Member, News]] = {}
        """Sweeps without a live member whose process may have another go on, and of which member
        the end was seen last."""

    def note(self, training: Iterable[Run], others: Iterable[Run]) -> None:
        """Follow these runs: `training` train now, `others` may do so later."""
        for runs, awake in ((training, True), (others, False)):
            for run in runs:
                if run.id not in self._followed:
                    self._followed[run.id] = _Followed(run, awake=awake)

    def poll(self) -> list[News]:
        """Look once at all runs. Returns what is new of them."""
        self._list()
        news: list[News] = []
        of_sweeps: dict[str, tuple[Member, list[News]]] = {}
        for name, one in list(self._followed.items()):
            happened = one.look()
            if happened is not None:
                member = sweep.read(one.run.path)
                told = News(one.run, digest.summary(one.run).name, happened)
                if member is not None:
                    of_sweeps.setdefault(member.sweep, (member, []))[1].append(told)
                elif happened.event in TOLD:
                    news.append(told)
            if one.stamp is None:  # it was removed
                del self._followed[name]
        for member, _ in self._asking.values():
            of_sweeps.setdefault(member.sweep, (member, []))
        for member, told in of_sweeps.values():
            news += self._of_sweep(member, told)
        return news

    def _of_sweep(self, member: Member, told: list[News]) -> list[News]:
        """What is told of members of one sweep that was seen in one look: once all have ended, how;
        before that only what went wrong."""
        from gpu_engine.sweep import group, kept

        _, last = self._asking.pop(member.sweep, (member, None))
        last = told[-1] if told else last
        try:
            found = group.find(member.sweep)
            states = [run.state() for run, _ in found.members]
        except UserError:  # it was removed since
            return []
        self._waits |= {member.sweep} if any(n.happened.event in TOLD for n in told) else set()
        called = f"sweep {member.sweep} {clean(member.name, 60)}"
        if last is not None and not any(state.live for state in states):
            if member.sweep not in self._waits:
                return []  # whoever has stopped it knows
            queue = paths.queue_folder()
            if not locked(waiting.sweep_lock(queue, member.sweep)) \
                    and not kept.asks(queue, member.sweep):
                self._waits.discard(member.sweep)
                return [replace(last, sweep=f"{called} has ended: {group.outcome(found)}",
                                good={state.state for state in states} == {"completed"})]
            self._asking[member.sweep] = member, last
        wrong = [n for n in told if n.happened.event in TOLD - {"finished"}]
        if len(wrong) < 2:
            return wrong
        counts = Counter(n.happened.event for n in wrong)
        return [replace(wrong[0], sweep=f"{called}: " + ", ".join(
            f"{n:,} {event}" for event, n in counts.most_common()))]

    def _list(self) -> None:
        """Follow the runs that are new in the folder."""
        try:
            stamp = paths.runs_folder().stat().st_mtime_ns
        except OSError:
            stamp = 0
        if stamp != self._listed:
            self._listed, before = stamp, self._known
            runs = list(each_run())
            self._known = {run.id for run in runs}
            self.note([] if before is None else [run for run in runs if run.id not in before
                                                 and run.id not in self._followed], [])


def _stamp(run: Run) -> object:
    """Changes when the run's state may have changed; None if it was removed."""
    with suppress(OSError):
        return job.stamp(run.path)
    return None
