"""What is done to runs after a question that names them, to one or to several at once; and the
dialog for their tags."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from textual.app import App

from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError
from gpu_engine.plan.own_command import on_stop
from gpu_engine.runs import notes
from gpu_engine.runs.folder import Run
from gpu_engine.runs.notes import Notes
from gpu_panel.commands import same
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import AskLine, Confirm
from gpu_panel.launch.run_line import RunLine
from gpu_panel.run.sheets import ask_to_cancel, ask_to_leave

T = TypeVar("T")
Change = Callable[[Notes], Notes]
"""What a dialog asks for: the new notes of a run, made from those that it has then."""
_NAMED = 12
"""The most runs that a question names one by one."""


def named(lines: Sequence[RunLine]) -> str:
    """ "3f2a digits, 2c11 vgg and 4 more"."""
    more = len(lines) - _NAMED
    return ", ".join(f"{line.id} {clean(line.name)}" for line in lines[:_NAMED]) \
        + (f" and {more} more" if more > 0 else "")


def _on_stop(lines: Sequence[RunLine]) -> str:
    words = {on_stop(plan and plan.spec) for plan in (line.run.plan() for line in lines)}
    return words.pop() if len(words) == 1 else on_stop(None)


async def ask_and_stop(app: App[Any], lines: Sequence[RunLine]) -> None:
    """Ask the person, then ask the live ones of these runs to stop. Call this from a worker. Raises
    UserError, naming every run that could not be asked."""
    live = [line for line in lines if line.live]
    if not live:
        app.notify("These runs have already ended", markup=False)
        return
    waits = [line for line in live if line.state == "queued" and line.job]
    queue = [line for line in live if line.waits]
    going = [line for line in live if line not in waits and line not in queue]
    if len(lines) == 1 and not going:
        question = (ask_to_cancel if waits else ask_to_leave)(live[0].id)
    else:
        parts = [f"{named(going)}: {await in_thread(lambda: _on_stop(going))}."] if going else []
        parts += [f"{named(queue)}: waiting, and removed from the queue."] if queue else []
        parts += [f"{named(waits)}: still in Slurm's queue, and cancelled there."] if waits else []
        if len(live) < len(lines):
            ended = len(lines) - len(live)
            parts.append(f"{ended} of these {len(lines)} runs {'has' if ended == 1 else 'have'} "
                         "ended already.")
        question = Confirm(f"Stop {_counted(live)}", " ".join(parts), yes="Stop", no="Keep running")
    if not await app.push_screen_wait(question):
        return
    from gpu_engine.places.verbs import stop

    await in_thread(lambda: _each(live, lambda line: stop(line.run)))
    same.done(app, f"{_counted(live)} removed from the queue" if len(live) == len(queue)
              else f"{_counted(live)} asked to stop", [["stop", line.id] for line in live])


async def ask_and_remove(app: App[Any], lines: Sequence[RunLine]) -> bool:
    """Ask the person, then remove those of these runs that have ended. Returns whether any was.
    Call this from a worker. Raises UserError, naming every run that could not be removed."""
    from gpu_engine.places.verbs import what_goes

    going = [line for line in lines if not line.live
             and (line.state != "unreadable" or len(lines) == 1)]
    if not going:
        app.notify("None of these runs has ended: s stops them", severity="warning", markup=False)
        return False
    text = f"{named(going)}: {await in_thread(lambda: what_goes([line.run for line in going]))}"
    if len(going) < len(lines):
        text += f" {len(lines) - len(going)} of the {len(lines)} marked runs stay: they " \
                "still run or can't be read."
    if not await app.push_screen_wait(Confirm(f"Remove {_counted(going)}", text, yes="Remove")):
        return False
    await in_thread(lambda: _remove(line.run for line in going))
    same.done(app, f"{_counted(going)} removed", [["runs", "rm", *(line.id for line in going)]])
    return True


def _counted(lines: Sequence[RunLine]) -> str:
    return f"run {lines[0].id}" if len(lines) == 1 else f"{len(lines)} runs"


def _each(runs: Iterable[T], work: Callable[[T], object]) -> None:
    """Do it to each run. Raises UserError at the end with all that went wrong."""
    trouble: list[str] = []
    for run in runs:
        try:
            work(run)
        except (UserError, OSError) as err:
            trouble.append(str(err))
    if trouble:
        raise UserError("\n".join(trouble))


async def write_on(app: App[Any], lines: Sequence[RunLine], change: Change) -> None:
    """Change what is written on these runs. Raises UserError, naming every run on which that
    failed."""
    changed: list[list[str]] = []

    def write(line: RunLine) -> None:
        before = notes.read(line.run.path)
        changed.append(same.note(line.id, before, notes.change(line.run.path, change)))

    await in_thread(lambda: _each(lines, write))
    same.done(app, f"Written on run {lines[0].id}" if len(lines) == 1
              else f"Written on {len(lines)} runs", [one for one in changed if len(one) > 2])


def _remove(going: Iterable[Run]) -> None:
    """Remove these runs. Raises UserError at the end, naming every run of which something stays."""
    from gpu_engine.places import verbs

    away = {}

    def remove(run: Run) -> None:
        outcome = verbs.remove(run, away)
        stays = [f"run {run.id} on {text}" for text in outcome.stays]
        if outcome.here is None:
            stays.append("So it stays here, too; gpu-engine runs rm --here removes it here all "
                         "the same.")
        if stays:
            raise UserError("\n".join(stays))

    _each(going, remove)


class TagsDialog(AskLine):
    """Asks for the tags of a run, or for tags to be added to and removed from several."""

    def __init__(self, runs: Sequence[str], tags: Sequence[str] | None, used: Sequence[str]
                 ) -> None:
        """`tags`: those of a single run; None: of several. `used`: the tags of all runs."""
        self._several = tags is None
        whose = f"{len(runs)} runs" if self._several else f"run {runs[0]}"
        note = f"{', '.join(runs)}: a word adds a tag, -word removes it." if self._several \
            else "Words, separated by blanks."
        note += f"\nIn use: {' '.join(used)}" if used else ""
        super().__init__(f"Tags of {whose}", " ".join(tags or ()), note, wrong=self._problem,
                         longest=4000, may_be_empty=True)

    def _words(self, text: str) -> tuple[list[str], list[str]]:
        """The tags to add, and those to remove."""
        words = text.replace(",", " ").split()
        removed = [w for w in words if self._several and w.startswith("-")]
        return [w for w in words if w not in removed], [w[1:] for w in removed]

    def _problem(self, text: str) -> str | None:
        added, removed = self._words(text)
        try:
            for tag in (*added, *removed):
                notes.require_tag(tag)
            Notes().with_tags(added)
        except UserError as err:
            return str(err)
        return None

    def change(self, text: str) -> Change:
        """What `text`, which was typed here, asks for."""
        added, removed = self._words(text)
        return lambda now: now.with_tags(added, [tag for tag in removed if tag in now.tags]) \
            if self._several else replace(now, tags=()).with_tags(added)
