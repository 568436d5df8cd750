"""Exports from a screen: asks what and where, runs `gpu-engine` beside the panel, and tells."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from gpu_engine.common.errors import UserError
from gpu_engine.common.files import expanded
from gpu_engine.common.programs import own_environment, own_program
from gpu_panel.commands import same
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import harmless


@dataclass(frozen=True, slots=True)
class Target:
    words: tuple[str, ...]
    label: str
    file: str | None
    """The name that is offered; RUN stands for the run's id. None: the target has its own place."""
    several: str | None = None
    """The name offered for several runs; None: as for one."""


TARGETS = (
    Target(("report", "--html"), "a report, as one HTML page", "report-RUN.html"),
    Target(("report", "--markdown"), "a report in Markdown", "report-RUN.md"),
    Target(("export", "--to", "csv"), "the figures as CSV", "RUN.csv", "runs-csv"),
    Target(("export", "--to", "tensorboard"), "the figures for TensorBoard", "tensorboard"),
    Target(("export", "--to", "wandb"), "the figures for Weights & Biases", None),
)


class ExportDialog(ModalScreen[list[str] | None]):
    """Answers with the words of a `gpu-engine` command; None: nothing is to be exported."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "cancel")]
    DEFAULT_CSS = """
    ExportDialog {
        OptionList { height: auto; background: transparent; margin-bottom: 1; }
        OptionList, OptionList:focus { border: none; }
        .export-label { color: $text-muted; }
    }
    """

    def __init__(self, runs: Sequence[str]) -> None:
        super().__init__()
        self._runs = list(runs)
        self._typed = False

    def compose(self) -> ComposeResult:
        title = f"run {self._runs[0]}" if len(self._runs) == 1 else f"{len(self._runs)} runs"
        with Vertical(classes="dialog") as box:
            box.border_title = harmless(f"Export {title}")
            box.border_subtitle = "enter export · tab file · esc cancel"
            yield OptionList(*(Option(target.label) for target in TARGETS), id="target")
            yield Static("", classes="export-label", id="where")
            yield Input("", compact=True, id="file")

    def on_mount(self) -> None:
        self.query_one(OptionList).highlighted = 0
        self.query_one(OptionList).focus()

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        target, field = TARGETS[event.option_index], self.query_one("#file", Input)
        field.display = target.file is not None
        where = f"file, in {Path.cwd()}" if target.file is not None else \
            "goes where that program keeps its data; it has to be installed beside gpu-panel"
        self.query_one("#where", Static).update(harmless(where))
        if not self._typed:
            with self.prevent(Input.Changed):
                field.value = self._offered(target)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._typed = bool(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._accept()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._accept()

    def _offered(self, target: Target) -> str:
        several = len(self._runs) > 1
        if several and target.several is not None:
            return target.several
        name = f"{self._runs[0]}-and-{len(self._runs) - 1}" if several else self._runs[0]
        return (target.file or "").replace("RUN", name)

    def _accept(self) -> None:
        target = TARGETS[self.query_one(OptionList).highlighted or 0]
        words = [*target.words, *self._runs]
        if target.file is not None:
            name = self.query_one("#file", Input).value.strip() or self._offered(target)
            words += ["--out", str(expanded(name))]
        self.dismiss(words)


async def export(app: App, runs: Sequence[str]) -> None:
    """Ask what to make of these runs, and make it, in a process of its own: a long run takes a
    while, and the libraries of some targets are large. Raises UserError with what it says."""
    words = await app.push_screen_wait(ExportDialog(runs))
    if words is None:
        return
    app.notify("Exporting … The panel can be used meanwhile")
    done = await in_thread(lambda: _run(words))
    said = (done.stdout if done.returncode == 0 else done.stderr).strip()
    if done.returncode != 0:
        raise UserError(said or f"the export ended with {done.returncode}")
    same.done(app, f"Written: {harmless(said).plain}" if said else "Written", [words])


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    argv = own_program("gpu_engine", *words)
    return subprocess.run(argv, env=own_environment(), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, errors="replace", check=False)
