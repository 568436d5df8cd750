"""The dialog for another attempt of a run: its checkpoint, its length, and changed settings."""

from __future__ import annotations

import shlex

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Button, Input, Static

from gpu_engine.runs.folder import Run
from gpu_panel.commands import same
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import harmless
from gpu_panel.common.submit import SubmitDialog
from gpu_panel.run.resume_options import ResumeOptions


class ResumeDialog(SubmitDialog):
    """Closes with True once the attempt has started."""

    def __init__(self, run: Run, options: ResumeOptions) -> None:
        super().__init__()
        self._run, self._options = run, options

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
                             action="screen.submit")

    def on_mount(self) -> None:
        self.query_one("#changes" if self._options.own else "#length").focus()
        self.show("")

    async def submit(self) -> None:
        from gpu_engine.launching import launcher as launch

        length = "" if self._options.own else self.query_one("#length", Input).value
        changes = self.query_one("#changes", Input).value
        start = "newest"
        for field in self.query("#start").results(Input):
            start = field.value.strip() or start
        sets, like = self._options.sets(length, changes, start), self._options.like
        self.show("starting …", "-plain")
        await in_thread(lambda: launch.resume(self._run, sets, like=like, start=start))
        words = [*(["--like", str(like)] if like is not None else []),
                 *(["--from", start] if start != "newest" else []),
                 *(word for one in sets for word in ("--set", one))]
        same.done(self.app, f"Run {self._run.id} goes on", [["resume", self._run.id, *words]])
        self.dismiss(True)
