"""The dialog for another attempt of a run: its checkpoint, its length, and changed settings."""

from __future__ import annotations

import shlex
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from gpu_engine.common.errors import UserError
from gpu_engine.runs.folder import Run
from gpu_panel.commands import same
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import harmless
from gpu_panel.common.errors import record, sentence
from gpu_panel.run.resume_options import ResumeOptions


class ResumeDialog(ModalScreen[bool]):
    """Closes with True once the attempt has started. Errors are shown inside, so that nothing
    that was typed is lost."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "cancel")]

    def __init__(self, run: Run, options: ResumeOptions) -> None:
        super().__init__()
        self._run, self._options = run, options
        self._starting = False

    def compose(self) -> ComposeResult:
        out = self._options
        with Vertical(classes="dialog") as box:
            box.border_title = harmless(f"Resume run {self._run.id}")
            box.border_subtitle = "enter resume · esc cancel"
            ending = out.state.state + (f": {out.state.reason}" if out.state.reason else "")
            yield Static(harmless(f"Attempt {out.state.attempt} {ending}"), classes="dialog-note")
            if out.like is not None:
                yield Static(harmless(out.warning()), classes="-warning", id="doubtful")
            yield Static(harmless(out.sentence()))
            if not out.own:
                with Horizontal(classes="ask"):
                    yield Static(f"{out.unit} in all", classes="ask-label", markup=False)
                    yield Input(str(out.length), compact=True, id="length", max_length=12)
            if out.can_choose:
                with Horizontal(classes="ask"):
                    yield Static("start from", classes="ask-label")
                    yield Input("newest", compact=True, id="start", max_length=30)
                yield Static(harmless(out.choices()), classes="dialog-note")
            with Horizontal(classes="ask"):
                yield Static("changes", classes="ask-label")
                yield Input(" ".join(map(shlex.quote, out.others)), compact=True, id="changes",
                            placeholder="none, or KEY=VALUE as in batch.size=64")
            yield Static("", id="trouble")
            with Horizontal(classes="buttons"):
                yield Button("Cancel", id="no", compact=True, action="screen.cancel")
                yield Button("Resume", id="yes", compact=True, variant="primary",
                             action="screen.resume")

    def on_mount(self) -> None:
        self.query_one("#changes" if self._options.own else "#length").focus()
        self._say("")

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.action_resume()

    @on(Input.Changed)
    def _changed(self) -> None:
        self._say("")

    def action_cancel(self) -> None:
        """Close the dialog, unless an attempt is starting."""
        if not self._starting:
            self.dismiss(False)

    def action_resume(self) -> None:
        """Start an attempt with the settings in the fields."""
        if not self._starting:
            self._starting = True
            self._resume()

    @work(exit_on_error=False)
    async def _resume(self) -> None:
        from gpu_engine.launching import launcher as launch

        length = "" if self._options.own else self.query_one("#length", Input).value
        changes = self.query_one("#changes", Input).value
        start = "newest"
        for field in self.query("#start").results(Input):
            start = field.value.strip() or start
        try:
            sets = self._options.sets(length, changes, start)
            self._say("starting …", "-plain")
            like = self._options.like
            await in_thread(lambda: launch.resume(self._run, sets, like=like, start=start),
                            name="panel-resume")
        except UserError as err:
            self._say(str(err))
        except Exception as err:  # noqa: BLE001  shown with a pointer to the traceback
            self._say(sentence(err, record(err)))
        else:
            words = [*(["--like", str(like)] if like is not None else []),
                     *(["--from", start] if start != "newest" else []),
                     *(word for one in sets for word in ("--set", one))]
            same.done(self.app, f"Run {self._run.id} goes on",
                      [["resume", self._run.id, *words]])
            self.dismiss(True)
        finally:
            self._starting = False

    def _say(self, text: str, tone: str = "-error") -> None:
        place = self.query_one("#trouble", Static)
        place.set_classes(tone)
        place.display = bool(text)
        place.update(harmless(text) if text else Content())
