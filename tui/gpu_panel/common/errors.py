"""What went wrong, said in one place: the person's mistakes in words, ours to a file."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_engine.common import places
from gpu_engine.common.errors import UserError

if TYPE_CHECKING:
    from textual.app import App


def log_path() -> Path:
    """The file that our own faults go to, with their tracebacks."""

    return places.home() / "panel.log"


def record(error: BaseException) -> Path | None:
    """Append the whole traceback to the log file; None where it can't be written."""
    path = log_path()
    text = "".join(traceback.format_exception(error))
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')}\n{text}")
    except OSError:
        return None
    return path


def sentence(error: BaseException, where: Path | None) -> str:
    """What a person reads of an exception of ours."""
    first = str(error).partition("\n")[0][:200]
    told = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return f"{told}\nThe whole of it is in {where}" if where else told


@contextmanager
def guard(app: App) -> Iterator[None]:
    """Show what goes wrong inside instead of ending the panel."""
    try:
        yield
    except Exception as err:  # noqa: BLE001  the one place where they end
        show(app, err)


def show(app: App, error: Exception) -> None:
    """Say in a dialog what went wrong; of a fault of ours the traceback goes to the log."""
    from gpu_panel.common.dialogs import Message

    if isinstance(error, UserError):
        app.push_screen(Message(error.title, str(error)))
        return
    app.push_screen(Message("Something went wrong in the panel", sentence(error, record(error)),
                            severity="error"))
