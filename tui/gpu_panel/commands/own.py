"""The person's own commands of settings.toml: what they are told in their environment, and running
them."""

from __future__ import annotations

import os
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
from gpu_engine.settings.schema import VARIABLES, OwnCommand
from gpu_panel.commands.output import OutputScreen
from gpu_panel.commands.terminal import in_terminal
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import Confirm

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
