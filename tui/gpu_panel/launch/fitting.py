"""What fits: `gpu-engine fit` on the form's run, and its proposal for the form.

It is a process of its own: it bounds the memory of what it starts, and it outlives a panel that is
closed meanwhile by what it takes to end and remove its trial.
"""

from __future__ import annotations

import json
import os
import subprocess
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from gpu_engine.cli.fit import command, lines
from gpu_engine.cli.spec_options import sets_keys
from gpu_engine.common import units
from gpu_engine.common.programs import own_environment, own_program
from gpu_engine.launching import fit
from gpu_engine.plan.batch import Batch
from gpu_engine.spec.write import to_toml
from gpu_panel.common.background import in_thread
from gpu_panel.common.command_dialog import CommandDialog, Form
from gpu_panel.common.dialogs import LETTERS, harmless
from gpu_panel.common.errors import guarded

if TYPE_CHECKING:
    from gpu_engine.devices.records import HostSample
    from gpu_engine.plan.records import LaunchPlan
    from gpu_engine.spec.schema import RunSpec


async def ask_and_fit(app: App[Any], spec: RunSpec, plan: LaunchPlan, host: HostSample | None
                      ) -> Batch | None:
    """Show what is tried; None unless the person takes the proposal. `host`: a reading of this
    machine. Call this from a worker. Raises UserError where nothing can be tried."""
    fit.require_triable(spec)
    words = await app.push_screen_wait(_memory(spec, plan, host)) \
        if plan.device_type == "cpu" else list[str]()
    return None if words is None else await app.push_screen_wait(FitDialog(spec, plan, words))


def _memory(spec: RunSpec, plan: LaunchPlan, host: HostSample | None) -> CommandDialog:
    """Asks what a rank may use on a CPU slot: by itself half of what is free, shared by all."""
    ranks = plan.local_world_size
    total, used = (host.memory_total, host.memory_used) if host is not None else (None, None)
    free = total - used if total and used else None
    # The other options are the form's affair.
    form = Form(command, {}, ["write", "as_json", *(p.name or "" for p in command.params
                                                    if sets_keys(p))])
    return CommandDialog(
        form, {"--memory": units.size(free // 2 // ranks) if free else "2 GiB"},
        f"What fits ─ {spec.name}", "A CPU slot has no memory of its own: what may a rank use? "
        + (f"{units.size(free)} of this machine are free, for {units.counted(ranks, 'rank')}. "
           if free else "")
        + "Larger and larger batches are then trained for a few steps, until one does not fit.",
        "Try")


class FitDialog(ModalScreen[Batch | None]):
    """Shows what is tried while it is, then the table with the proposal, which enter takes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *LETTERS, Binding("escape", "leave", "leave"), Binding("enter", "take", "take")]

    def __init__(self, spec: RunSpec, plan: LaunchPlan, words: list[str]) -> None:
        """`words`: options of `gpu-engine fit`."""
        super().__init__()
        self._spec, self._plan, self._words = spec, plan, words
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self._proposal: Batch | None = None

    def compose(self) -> ComposeResult:
        within = f" within {self._words[-1]}" if self._words else ""
        with VerticalScroll(classes="dialog") as box:
            box.border_title = harmless(f"What fits ─ {self._spec.name}{within}")
            box.border_subtitle = "esc stop"
            yield Static("Training a few steps with each batch size …\n", markup=False)

    def on_mount(self) -> None:
        self._try()

    def _show(self, text: str, keys: str) -> None:
        box = self.query_one(VerticalScroll)
        box.border_subtitle = harmless(keys)
        self.query_one(Static).update(harmless(text))
        box.scroll_end(animate=False)

    @guarded("trials")
    async def _try(self) -> None:
        told = b""
        with TemporaryFile("w", encoding="utf-8") as file:  # whose values are not for `ps` to show
            file.write(to_toml(self._spec))
            file.flush()
            process = self._process = subprocess.Popen(
                own_program("gpu_engine", "fit", "/dev/stdin", "--json", *self._words),
                env=own_environment(), stdin=file, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stderr is not None
        pipe = process.stderr.fileno()
        try:
            while more := await in_thread(lambda: os.read(pipe, 1 << 16)):
                told += more
                self._show(told.decode(errors="replace") + "…" * (not told.endswith(b"\n")),
                           "stopping … · esc close" if self._stopped else "esc stop")
            answer, _ = await in_thread(process.communicate)
        finally:  # also where the panel is closed
            if process.poll() is None:
                process.terminate()
        if self._stopped:
            self.dismiss(None)
        elif process.returncode:
            self._show(told.decode(errors="replace"), "esc close")
        else:
            self._show_answer(json.loads(answer))

    def _show_answer(self, answer: dict[str, Any]) -> None:
        trials, plan = [fit.Trial(**trial) for trial in answer["trials"]], self._plan
        proposal = Batch(**answer["proposal"]) if answer["proposal"] else None
        text, keys = "\n".join([*lines(self._spec, trials, plan.unit), "", ""]), "esc close"
        if answer["largest"] is None:
            text += fit.advice(self._spec, trials)
        else:
            text += fit.verdict(trials, plan.unit)
        if proposal is not None:
            same = (proposal.per_gpu, proposal.accumulate) == (
                plan.batch.per_gpu, plan.batch.accumulate)
            text += f"\n{proposal.sentence(plan.unit)}"
            if same:
                text += ", as the form has it"
            else:
                text += f"\nin place of {plan.batch.sentence(plan.unit)}. Put it into the form?"
                keys, self._proposal = "enter put it into the form · esc leave the form", proposal
        self._show(text, keys)

    def action_leave(self) -> None:
        """Stop it, and close once it has removed its trial; a second time at once."""
        process = self._process
        if process is None or process.poll() is not None or self._stopped:
            self.dismiss(None)
            return
        self._stopped = True
        self.query_one(VerticalScroll).border_subtitle = "stopping … · esc close"
        process.terminate()

    def action_take(self) -> None:
        if self._proposal is not None:
            self.dismiss(self._proposal)
