"""The dialogs in which a person writes on runs: a name and a note on one, tags on several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Button, Input, Static, TextArea

from gpu_engine.common.errors import UserError
from gpu_engine.runs import notes
from gpu_engine.runs.notes import Notes
from gpu_panel.common.dialogs import AskLine, harmless
from gpu_panel.common.submit import SubmitDialog

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
