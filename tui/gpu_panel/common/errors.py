"""Showing errors: a person's mistake as a message, a fault of ours with its traceback in a log."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from textual import work
from textual.app import App
from textual.dom import DOMNode
from textual.worker import Worker

from gpu_engine.common import paths
from gpu_engine.common.errors import UserError

N = TypeVar("N", bound=DOMNode)
P = ParamSpec("P")


def log_path() -> Path:
    return paths.home() / "panel.log"


def record(error: BaseException) -> Path | None:
    """Append the whole traceback to the log file. Returns its path; None if that failed."""
    path = log_path()
    text = "".join(traceback.format_exception(error))
    try:
        paths.private_folder(path.parent)
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')}\n{text}")
    except OSError:
        return None
    return path


def sentence(error: BaseException, where: Path | None) -> str:
    """What a person reads about an exception of ours; `where`: the file with its traceback."""
    first = str(error).partition("\n")[0][:200]
    short = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return f"{short}\nThe full traceback is in {where}" if where else short


@contextmanager
def guard(app: App) -> Iterator[None]:
    """Show exceptions raised inside instead of ending the panel."""
    try:
        yield
    except Exception as err:  # noqa: BLE001  shown with a pointer to the traceback
        show(app, err)


def show(app: App, error: Exception) -> None:
    """Show an error in a dialog. If it is a fault of ours, its traceback goes to the log."""
    from gpu_panel.common.dialogs import Message

    if isinstance(error, UserError):
        app.push_screen(Message(error.title, str(error)))
        return
    app.push_screen(Message("Something went wrong in the panel", sentence(error, record(error)),
                            severity="error"))


def guarded(group: str, *, exclusive: bool = False) -> Callable[
        [Callable[Concatenate[N, P], Coroutine[Any, Any, None]]],
        Callable[Concatenate[N, P], Worker[None]]]:
    """As Textual's `work`, for a method of a widget or screen: what goes wrong in it is shown
    instead of ending the panel."""
    def decorate(method: Callable[Concatenate[N, P], Coroutine[Any, Any, None]]
                 ) -> Callable[Concatenate[N, P], Worker[None]]:
        @work(exit_on_error=False, group=group, exclusive=exclusive)
        @wraps(method)
        async def shown(self: N, *args: P.args, **options: P.kwargs) -> None:
            with guard(self.app):
                await method(self, *args, **options)

        return shown

    return decorate
