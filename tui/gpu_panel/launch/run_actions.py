"""What is done to runs after a question that names them, to one or to several at once; and the
dialogs in which a person writes on them: a name and a note on one, tags on several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Button, Input, Static, TextArea

from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError
from gpu_engine.plan.own_command import on_stop
from gpu_engine.runs import notes
from gpu_engine.runs.folder import Run
from gpu_engine.runs.notes import Notes
from gpu_panel.commands import same
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import AskLine, Confirm, harmless
from gpu_panel.common.submit import SubmitDialog
from gpu_panel.launch.run_line import RunLine
from gpu_panel.run.sheets import ask_to_cancel, ask_to_leave

T = TypeVar("T")
_NAMED = 12
"""The most runs that a question names one by one."""


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def named(lines: Sequence[RunLine]) -> str:
    """ "3f2a digits, 2c11 vgg and 4 more"."""
    return _listed([f"{line.id} {clean(line.name)}" for line in lines])


def _on_stop(lines: Sequence[RunLine]) -> str:
    words = {on_stop(plan and plan.spec) for plan in (line.run.plan() for line in lines)}
    return words.pop() if len(words) == 1 else on_stop(None)


async def ask_and_stop(app: App[Any], lines: Sequence[RunLine], title: str = "") -> None:
    """Ask the person, then ask the live ones of these runs to stop. Call this from a worker. Raises
    UserError, naming every run that could not be asked."""
    live = [line for line in lines if line.live]
    if not live:
        app.notify(f"Run {lines[0].id} has already ended: {lines[0].state}" if len(lines) == 1
                   else "These runs have already ended", markup=False)
        return
    waits = [line for line in live if line.state == "queued" and line.job]
    queue = [line for line in live if line.waits]
    if len(lines) == 1:
        question = ask_to_cancel(live[0].id) if waits else ask_to_leave(live[0].id) if queue \
            else Confirm(title or f"Stop run {live[0].id}",
                         f"{live[0].name}: {await in_thread(lambda: _on_stop(live))}.",
                         yes="Stop it", no="Keep running")
    else:
        going = [line for line in live if not line.waits]
        parts = [f"{named(going)}: {await in_thread(lambda: _on_stop(going))}."] if going else []
        parts += [f"{named(queue)}: waiting, and removed from the queue."] if queue else []
        text = " ".join(parts)
        if waits:
            text += f" {named(waits)}: still in Slurm's queue, and cancelled there."
        if len(live) < len(lines):
            text += f" {len(lines) - len(live)} of the {len(lines)} marked runs have ended."
        question = Confirm(f"Stop {len(live)} run{'s' * (len(live) > 1)}", text, yes="Stop them",
                           no="Keep running")
    if not await app.push_screen_wait(question):
        return
    from gpu_engine.launching.lookup import stop

    await in_thread(lambda: _each(live, lambda line: stop(line.run)))
    same.done(app, f"Run {live[0].id} was removed from the queue" if len(live) == len(queue) == 1
              else f"Run {live[0].id} was asked to stop" if len(live) == 1
              else f"{len(live)} runs were asked to stop", [["stop", line.id] for line in live])


async def ask_and_remove(app: App[Any], lines: Sequence[RunLine]) -> bool:
    """Ask the person, then remove those of these runs that have ended. Returns whether any was.
    Call this from a worker. Raises UserError, naming every run that could not be removed."""
    from gpu_engine.remote.run.removal import what_goes

    going = [line for line in lines if not line.live
             and (line.state != "unreadable" or len(lines) == 1)]
    if not going:
        app.notify(f"Run {lines[0].id} is running: s stops it" if len(lines) == 1
                   else "None of the marked runs has ended: s stops them", severity="warning",
                   markup=False)
        return False
    what = await in_thread(lambda: what_goes([line.run for line in going]))
    if len(lines) == 1:
        question = Confirm(f"Remove run {going[0].id}", f"{going[0].name}: {what}",
                           yes="Remove it")
        done = f"Run {going[0].id} was removed"
    else:
        text = f"{named(going)}: {what}"
        if len(going) < len(lines):
            text += f" {len(lines) - len(going)} of the {len(lines)} marked runs stay: they " \
                    "still run or can't be read."
        question = Confirm(f"Remove {len(going)} runs", text, yes="Remove them")
        done = f"{len(going)} runs were removed"
    if not await app.push_screen_wait(question):
        return False
    await in_thread(lambda: _remove(line.run for line in going))
    same.done(app, done, [["runs", "rm", *(line.id for line in going)]])
    return True


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


async def write_on(app: App[Any], lines: Sequence[RunLine], change: Callable[[Notes], Notes]
                   ) -> None:
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
    from gpu_engine.remote.run.removal import Removal

    with Removal() as removal:
        def remove(run: Run) -> None:
            outcome = removal.remove(run)
            stays = [f"run {run.id} on {text}" for text in outcome.stays]
            if outcome.here is None:
                stays.append("So it stays here, too; gpu-engine runs rm --here removes it here all "
                             "the same.")
            if stays:
                raise UserError("\n".join(stays))

        _each(going, remove)


Change = Callable[[Notes], Notes]
"""What a dialog asks for: the new notes of a run, made from those that it has then."""


class NoteDialog(SubmitDialog):
    """Asks for a run's name and note: a `Change`; None: nothing is to be changed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+s", "submit", "save", priority=True)]
    DEFAULT_CSS = """
    NoteDialog {
        .note-label { color: $text-muted; }
        TextArea { height: 6; border: none; padding: 0; }
        #name { margin-bottom: 1; }
        #trouble { margin-top: 1; color: $text-error; display: none; }
    }
    """

    def __init__(self, run: str, started_as: str, known: Notes) -> None:
        super().__init__()
        self._run, self._started_as, self._known = run, started_as, known

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = harmless(f"Name and note of run {self._run}")
            box.border_subtitle = "ctrl+s save · esc cancel"
            yield Static("name", classes="note-label")
            yield Input(self._known.name or "", compact=True, id="name",
                        max_length=notes.LONGEST_NAME, placeholder=self._started_as)
            yield Static("note", classes="note-label")
            yield TextArea(self._known.note, compact=True, id="note")
            yield Static("", id="trouble")
            with Horizontal(classes="buttons"):
                yield Button("Cancel", compact=True, action="screen.cancel")
                yield Button("Save", compact=True, action="screen.submit")

    def on_mount(self) -> None:
        self.query_one("#name").focus()

    async def submit(self) -> None:
        name, note = self.query_one("#name", Input).value, self.query_one("#note", TextArea).text
        known = self._known

        def changed(now: Notes) -> Notes:  # what was not touched may have been changed elsewhere
            now = now if name == (known.name or "") else replace(now, name=name or None)
            return now if note == known.note else replace(now, note=note)

        notes.require_valid(changed(known))
        self.dismiss(changed)


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
