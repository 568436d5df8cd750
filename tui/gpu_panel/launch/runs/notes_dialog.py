"""The dialogs in which a person writes on runs: a name and a note on one, tags on several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static, TextArea

from gpu_engine.common.errors import UserError
from gpu_engine.runs import notes
from gpu_engine.runs.notes import Notes
from gpu_panel.common.dialogs import harmless

Change = Callable[[Notes], Notes]
"""What a dialog asks for: the new notes of a run, made from those that it has then."""


class NoteDialog(ModalScreen[Change | None]):
    """Asks for a run's name and note; None: nothing is to be changed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "accept", "save", priority=True), Binding("escape", "cancel", "cancel")]
    DEFAULT_CSS = """
    NoteDialog {
        .note-label { color: $text-muted; }
        TextArea { height: 6; border: none; padding: 0; }
        #name { margin-bottom: 1; }
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
            yield Static("", id="name-said", classes="-error")
            with Horizontal(classes="buttons"):
                yield Button("Cancel", compact=True, action="screen.cancel")
                yield Button("Save", compact=True, action="screen.accept")

    def on_mount(self) -> None:
        self.query_one("#name-said").display = False
        self.query_one("#name").focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.action_accept()

    def action_accept(self) -> None:
        """Save, unless what was typed is too long, which is then said."""
        name, note = self.query_one("#name", Input).value, self.query_one("#note", TextArea).text
        known = self._known

        def changed(now: Notes) -> Notes:  # what was not touched may have been changed elsewhere
            now = now if name == (known.name or "") else replace(now, name=name or None)
            return now if note == known.note else replace(now, note=note)

        try:
            notes.require_valid(changed(known))
        except UserError as err:
            place = self.query_one("#name-said", Static)
            place.display = True
            place.update(harmless(str(err)))
            return
        self.dismiss(changed)

    def action_cancel(self) -> None:
        self.dismiss(None)


class TagsDialog(ModalScreen[Change | None]):
    """Asks for the tags of a run, or for tags to be added to and removed from several."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "cancel")]

    def __init__(self, runs: Sequence[str], tags: Sequence[str] | None, used: Sequence[str],
                 ) -> None:
        """`tags`: those of a single run; None: of several. `used`: the tags of all runs."""
        super().__init__()
        self._runs, self._tags, self._used = tuple(runs), tags, tuple(used)

    def compose(self) -> ComposeResult:
        several = self._tags is None
        with Vertical(classes="dialog") as box:
            box.border_title = harmless("Tags of " + (
                f"{len(self._runs)} runs" if several else f"run {self._runs[0]}"))
            box.border_subtitle = "enter save · esc cancel"
            lines = [", ".join(self._runs) + ": a word adds a tag, -word removes it."] \
                if several else ["Words, separated by blanks."]
            lines += [f"In use: {' '.join(self._used)}"] if self._used else []
            yield Static(harmless("\n".join(lines)), classes="dialog-note")
            yield Input(" ".join(self._tags or ()), compact=True, id="tags")
            yield Static("", id="name-said", classes="-error")

    def on_mount(self) -> None:
        self.query_one("#name-said").display = False
        self.query_one("#tags").focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        words = event.value.replace(",", " ").split()
        removed = [w[1:] for w in words if w.startswith("-")] if self._tags is None else []
        added = [w for w in words if self._tags is not None or not w.startswith("-")]

        def changed(now: Notes) -> Notes:
            if self._tags is not None:
                return replace(now, tags=()).with_tags(added)
            return now.with_tags(added, [tag for tag in removed if tag in now.tags])

        try:
            for tag in (*added, *removed):
                notes.require_tag(tag)
            changed(Notes())
        except UserError as err:
            place = self.query_one("#name-said", Static)
            place.display = True
            place.update(harmless(str(err)))
            return
        self.dismiss(changed if words or self._tags is not None else None)

    def action_cancel(self) -> None:
        self.dismiss(None)
