"""The person's own commands of settings.toml: what stands for placeholders, and running them."""

from __future__ import annotations

import shlex
import socket
import subprocess
import threading
from collections.abc import Mapping
from typing import Any

from textual.app import App

from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError
from gpu_engine.remote.run import parts
from gpu_engine.runs import stacks, trust
from gpu_engine.runs.folder import Run
from gpu_engine.settings.own_commands import PLACEHOLDERS, OwnCommand
from gpu_panel.commands.output import OutputScreen
from gpu_panel.commands.terminal import in_terminal
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import Confirm

Values = Mapping[str, str | int | None]


def of_run(run: Run, rank: int | None = None) -> Values:
    """What stands for the placeholders at a run. The process is the rank's, if that is on this
    machine, or without a rank the supervisor; its folder's word for it is not enough. Blocks."""
    host = next((p.host for p in parts.read(run.path) if (rank or 0) in p.ranks), None)
    if rank is not None:
        pid = (stacks.process(run, rank) or (None,))[0] if host is None else None
    else:
        pid = run.state().pid
    known = pid is not None and trust.belongs(pid, run.path)
    return {"run.dir": str(run.path.absolute()), "run.id": run.id, "pid": pid if known else None,
            "host": host or socket.gethostname()}


def of_process(pid: int | None, host: str | None) -> Values:
    """What stands for the placeholders at a process on a GPU. `host`: None is this machine."""
    return {"pid": pid, "host": host or socket.gethostname(), "elsewhere": int(host is not None)}


async def run(app: App[Any], command: OwnCommand) -> None:
    """Run it with what is under the cursor. Raises UserError where that lacks something."""
    nodes = (app.focused or app.screen).ancestors_with_self
    at = next((n for n in nodes if hasattr(n, "placeholders")), None)
    given: Values = await in_thread(getattr(at, "placeholders")) if at else {}  # noqa: B009
    if given.get("elsewhere") and "pid" in command.needs and "host" not in command.needs:
        raise UserError(f"this process is on {given['host']}: there a command with {{pid}} needs "
                        "{host} too")
    values = {name: str(value) for name, value in given.items() if value is not None}
    for name in command.needs:
        if name not in values:
            raise UserError(f"{command.name} needs {{{name}}}, {PLACEHOLDERS[name]}, and there is "
                            "none here")
    try:
        argv = command.filled(values)
    except ValueError as err:
        raise UserError(f"{command.name} is not run: {err}") from None
    if command.confirm and not await app.push_screen_wait(Confirm(
            command.name, f"{command.help}\n\n$ {clean(shlex.join(argv))}".strip(), yes="Run it")):
        return
    if command.where == "pane":
        app.push_screen(OutputScreen(argv))
    elif command.where == "terminal":
        code = in_terminal(app, argv)
        if code:
            app.notify(f"{command.name} ended with {code}", severity="warning", markup=False)
    else:
        _in_background(argv)
        app.notify(f"Started {command.name}", markup=False)


def _in_background(argv: list[str]) -> None:
    """Start a program that goes on when the panel closes. Raises UserError."""
    try:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, start_new_session=True)
    except OSError as err:
        raise UserError(f"{argv[0]} can't be started: {err.strerror}") from None
    threading.Thread(target=process.wait, daemon=True).start()
