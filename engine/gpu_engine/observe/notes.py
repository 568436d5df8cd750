"""Reports problems of the observer itself when there is no record for them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from ..common.files import open_inside
from ..events import schema
from ..events.paths import events_path
from ..events.writer import append
from . import identity


def note(text: str, run: Path) -> None:
    """Add a line to `observe-errors.log` in the run folder. Never raises."""
    with contextlib.suppress(Exception):
        fd = open_inside(run, "observe-errors.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        with os.fdopen(fd, "a") as file:
            file.write(f"{os.getpid()} {text}\n")


def cannot_observe(run: Path, direct: bool, text: str) -> None:
    """Report why this process can't be observed: in a note, and as a warning of its rank if the
    supervisor itself started it (`direct`). Other processes may never become a rank."""
    note(text, run)
    if direct:
        with contextlib.suppress(OSError):
            append(events_path(run, identity.identify().rank), schema.Warning(text))
