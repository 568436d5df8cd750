"""Ends a process from the screen: asks, sends a signal, waits, and asks again before killing."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from gpu_engine.devices.records import DeviceProcess
from gpu_panel.common import units
from gpu_panel.common.background import in_thread
from gpu_panel.common.choice import Choice
from gpu_panel.common.dialogs import Confirm, harmless
from gpu_panel.launch.detail import end_process
from gpu_panel.launch.detail.end_process import Target
from gpu_panel.launch.gpu_processes.lines import ranks_by_pid
from gpu_panel.launch.runs.line import RunLine

PATIENCE = 5.0
"""Seconds that a process has to end after a signal."""
SIGNALS = (("SIGTERM", "SIGTERM"), ("SIGINT", "SIGINT"), ("SIGKILL", "SIGKILL"))
_MEANING = {
    "SIGTERM": "Asks it to end. What it has not saved may be lost.",
    "SIGINT": "As ctrl+c in its terminal: most programs end, Python with a KeyboardInterrupt.",
    "SIGKILL": "Ends it at once; it can save nothing.",
}


async def end_or_stop(app: App[Any], process: DeviceProcess, host: str | None,
                      runs: Sequence[RunLine],
                      stop: Callable[[RunLine, str], object]) -> None:
    """Ask the person, then end `process`; of a rank of `runs`, `stop` the run instead, as it would
    fail without the rank. A process of `host` is left alone. Call this from a worker. Raises
    NotOurs if the process may not be ended from here."""
    if host is not None:  # its number may be another process's here
        app.notify(f"Process {process.pid} runs on {host}: end it there", severity="warning",
                   markup=False)
        return
    rank = ranks_by_pid(runs).get(process.pid)
    if rank is not None:
        run, number = rank
        stop(run, f"Process {process.pid} is rank {number} of run {run.id}: stop the run instead?")
        return
    await _ask_and_end(app, process)


async def _ask_and_end(app: App[Any], process: DeviceProcess) -> None:
    """Ask the person which signal to send and, if the process does not end, whether to kill it."""
    target = await in_thread(lambda: end_process.examine(process), name="panel-end-process")
    others = await in_thread(lambda: end_process.is_of_another(target), name="panel-end-process")
    about = _described(process)
    chosen = await app.push_screen_wait(SignalDialog(
        f"End process {process.pid}", about, warning=
        f"It belongs to {process.user or 'another user'}, not to you." if others else ""))
    if chosen is None:
        return
    if not await _send(target, chosen):
        app.notify(f"Process {target.pid} had already ended", markup=False)
        return
    if await _ends(target):
        app.notify(f"Process {target.pid} has ended", markup=False)
        return
    if chosen == signal.SIGKILL:
        app.notify(f"Process {target.pid} was killed but is still there: it waits for a driver or "
                   "a disk", severity="warning", markup=False)
        return
    if await app.push_screen_wait(Confirm(
            f"Process {target.pid} is still running", f"{about}\n\nIt has not "
            f"ended within {PATIENCE:g} s. SIGKILL ends it at once, and it can save "
            "nothing.", yes="Kill it", no="Leave it")):
        sent = await _send(target, signal.SIGKILL)
        app.notify(f"Process {target.pid} {'was killed' if sent else 'had ended by itself'}",
                   markup=False)


async def _send(target: Target, number: signal.Signals) -> bool:
    return await in_thread(lambda: end_process.send(target, number), name="panel-end-process")


class SignalDialog(ModalScreen[signal.Signals | None]):
    """Asks whether to send a signal, and which; None: none. The safe answer has the focus."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,n", "answer(False)", "no"),
        Binding("y", "answer(True)", "yes"),
        Binding("left", "other(-1)", "other signal", show=False),
        Binding("right", "other(1)", "other signal", show=False),
    ]

    def __init__(self, title: str, text: str, *, warning: str = "") -> None:
        super().__init__()
        self._title, self._text, self._warning = title, text, warning

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -warning") as box:
            box.border_title = harmless(self._title)
            box.border_subtitle = "y yes · n no · ← → signal"
            yield Static(harmless(self._text))
            if self._warning:
                yield Static(harmless(f"\n! {self._warning}"), id="whose")
            yield Static("")
            yield Choice(SIGNALS, id="signal")
            yield Static(_MEANING["SIGTERM"], id="meaning", classes="dialog-note")
            with Horizontal(classes="buttons"):
                yield Button("Cancel", id="no", compact=True, action="screen.answer(False)")
                yield Button("End it", id="yes", compact=True, variant="warning",
                             action="screen.answer(True)")

    def on_mount(self) -> None:
        self.query_one("#no").focus()

    def on_choice_changed(self, event: Choice.Changed) -> None:
        event.stop()
        self.query_one("#meaning", Static).update(_MEANING[event.value])

    def action_other(self, step: int) -> None:
        self.query_one(Choice).action_move(step)

    def action_answer(self, answer: bool) -> None:
        chosen = self.query_one(Choice).value
        self.dismiss(signal.Signals[chosen] if answer else None)


def _described(process: DeviceProcess) -> str:
    """What identifies the process for a person: owner, command, age and GPU memory."""
    parts = [process.user or units.UNKNOWN, process.command or units.UNKNOWN]
    if process.started is not None:
        parts.append(f"since {units.clock(time.time() - process.started)}")
    if process.memory is not None:
        parts.append(f"{units.gib(process.memory)} GiB of GPU memory")
    return " · ".join(parts)


async def _ends(target: Target) -> bool:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if end_process.gone(target):
            return True
        await asyncio.sleep(0.1)
    return end_process.gone(target)
