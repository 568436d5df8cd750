"""The person's own commands of settings.toml: what they are told in their environment, running
them, and their output as a sheet over the screen."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import socket
import subprocess
import threading
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import RichLog

from gpu_engine.common.clean import clean, clean_lines
from gpu_engine.common.errors import UserError
from gpu_engine.common.programs import own_environment, own_program
from gpu_engine.remote.run import parts
from gpu_engine.runs import stacks, trust
from gpu_engine.runs.folder import Run
from gpu_engine.settings.schema import VARIABLES, OwnCommand
from gpu_panel.commands.terminal import in_terminal
from gpu_panel.common.background import in_thread
from gpu_panel.common.clipboard import copy
from gpu_panel.common.dialogs import LETTERS, Confirm, harmless

Values = Mapping[str, str | int | None]


def of_run(run: Run, rank: int | None = None) -> Values:
    """What a command is told at a run. The process is the rank's, if that is on this machine, or
    without a rank the supervisor; its folder's word for it is not enough. Blocks."""
    host = next((p.host for p in parts.read(run.path) if (rank or 0) in p.ranks), None)
    if rank is not None:
        pid = (stacks.process(run, rank) or (None,))[0] if host is None else None
    else:
        pid = run.state().pid
    known = pid is not None and trust.belongs(pid, run.path)
    return {"GPU_PANEL_RUN_DIR": str(run.path.absolute()), "GPU_PANEL_RUN_ID": run.id,
            "GPU_PANEL_PID": pid if known else None,
            "GPU_PANEL_HOST": host or socket.gethostname()}


def of_process(pid: int | None, host: str | None) -> Values:
    """What a command is told at a process on a GPU. `host`: None is this machine."""
    return {"GPU_PANEL_PID": pid, "GPU_PANEL_HOST": host or socket.gethostname(),
            "elsewhere": int(host is not None)}


async def run(app: App[Any], command: OwnCommand) -> None:
    """Run it with what is under the cursor. Raises UserError where that lacks something."""
    nodes = (app.focused or app.screen).ancestors_with_self
    at = next((n for n in nodes if hasattr(n, "placeholders")), None)
    given: Values = await in_thread(getattr(at, "placeholders")) if at else {}  # noqa: B009
    needs = command.needs
    if given.get("elsewhere") and "GPU_PANEL_PID" in needs and "GPU_PANEL_HOST" not in needs:
        raise UserError(f"this process is on {given['GPU_PANEL_HOST']}: there a command with "
                        "$GPU_PANEL_PID needs $GPU_PANEL_HOST too")
    for name in needs:
        if given.get(name) is None:
            raise UserError(f"{command.name} needs ${name}, {VARIABLES[name]}, and there is none "
                            "here")
    told = {name: str(given[name]) for name in VARIABLES if given.get(name) is not None}
    argv, environment = ["sh", "-c", command.run], {**os.environ, **told}
    title = " ".join([*(f"{name}={shlex.quote(told[name])}" for name in needs), command.run])
    if command.confirm and not await app.push_screen_wait(Confirm(
            command.name, f"{command.help}\n\n$ {clean(title)}".strip(), yes="Run it")):
        return
    if command.where == "pane":
        app.push_screen(OutputScreen(argv, title=title, environment=environment))
    elif command.where == "terminal":
        code = in_terminal(app, argv, environment=environment)
        if code:
            app.notify(f"{command.name} ended with {code}", severity="warning", markup=False)
    else:
        # It goes on when the panel closes.
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, start_new_session=True,
                                   env=environment)
        threading.Thread(target=process.wait, daemon=True).start()
        app.notify(f"Started {command.name}", markup=False)


# --- its output, as a sheet over the screen -------------------------------------------------------

_LINES = 5000
"""The last lines that are kept."""
_READ = 1 << 16


def engine(app: App[Any], *words: str) -> None:
    """Run `gpu-engine` with these words, and show what it prints."""
    app.push_screen(OutputScreen(own_program("gpu_engine", *words), environment=own_environment(),
                                 title=shlex.join(["gpu-engine", *words])))


class OutputScreen(ModalScreen[None]):
    """Runs a program and shows what it prints. Closing it ends the program and what it has started
    in its session."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *LETTERS,
        Binding("escape,q", "close", "close"), Binding("y", "copy", "copy")]

    def __init__(self, argv: Sequence[str], *, title: str,
                 environment: Mapping[str, str]) -> None:
        """`title`: the command as a person would type it."""
        super().__init__()
        self._argv, self._title, self._environment = argv, title, environment
        self.process: Process | None = None
        self._printed: deque[str] = deque(maxlen=_LINES)

    def compose(self) -> ComposeResult:
        box = RichLog(max_lines=_LINES, wrap=True, min_width=10, classes="sheet")
        box.border_title = harmless(f"$ {clean(self._title)}")
        yield box

    def on_mount(self) -> None:
        self._subtitle("esc ends it")
        self.run_worker(self._run(), exit_on_error=False)

    def on_unmount(self) -> None:
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM)  # with what it has started

    def _print(self, data: bytes) -> None:
        for line in clean_lines(data.decode(errors="replace")):
            self._printed.append(line)
            self.query_one(RichLog).write(line)

    def _subtitle(self, text: str) -> None:
        self.query_one(RichLog).border_subtitle = harmless(text)

    async def _run(self) -> None:
        try:
            self.process = await asyncio.create_subprocess_exec(
                *self._argv, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, start_new_session=True,
                env=dict(self._environment))
        except OSError as err:
            self._subtitle(f"can't be started: {err.strerror} · esc close")
            return
        assert self.process.stdout is not None
        rest = b""
        while data := await self.process.stdout.read(_READ):
            whole, end, rest = (rest + data).rpartition(b"\n")
            if end or len(rest) > _READ:
                self._print(whole or rest)
                rest = rest if end else b""
        if rest:
            self._print(rest)
        code = await self.process.wait()
        ended = "" if code == 0 else f"ended with {code} · "
        self._subtitle(f"{ended}y copy · esc close")

    def action_copy(self) -> None:
        copy(self.app, "\n".join(self._printed))

    def action_close(self) -> None:
        self.dismiss(None)
