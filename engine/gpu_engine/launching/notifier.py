"""Starting the process that tells a person what becomes of a run: see `notify/`."""

from __future__ import annotations

import os

from gpu_engine import notify
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import open_inside
from gpu_engine.launching import logind
from gpu_engine.runs.folder import Run

# The rest is imported where there is a notify.toml, which few launches have.


def start(run: Run) -> None:
    """Start it, detached, if there is a notify.toml. Raises nothing: a run is not worth less if
    nobody is told of it. The part of a run on hosts is told of by the machine that started it."""
    try:
        if not notify.exists() or not _wanted():
            return
        from gpu_engine.notify import journal

        plan = run.plan()
        if plan is not None and plan.origin is not None:
            return
        log = open_inside(run.path, journal.FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        # Without what would make the process look like one of a run's ranks.
        environ = {k: v for k, v in os.environ.items() if not k.startswith("GPU_PANEL_RUN")}
        logind.start(log, "gpu_engine.notify", str(run.path), env=environ)
    except OSError:
        return


def doubt() -> str | None:
    """A warning before a run: why nobody will be told of it, although there is a notify.toml."""
    if not notify.exists() or not _wanted():
        return None
    from gpu_engine.notify import config

    why = config.problem()
    return None if why is None else f"no notifications will be sent about this run: {why}"


def _wanted() -> bool:
    """Whether settings.toml wants anybody to be told; so it does where it can't be read."""
    from gpu_engine.settings import file

    try:
        return file.read().runs.notify
    except UserError:
        return True
