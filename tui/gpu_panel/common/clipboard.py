"""Copying: to the terminal's clipboard, and to a file."""

from __future__ import annotations

from typing import Any

from textual.app import App

from gpu_engine.common import paths
from gpu_engine.common.clean import clean_text
from gpu_engine.common.files import write_atomic
from gpu_panel import readonly


def copy(app: App[Any], text: str) -> None:
    """Copy `text`, made harmless for where it is pasted, to the terminal's clipboard, and to a
    file, as a terminal never reports whether it has taken it. A notification says so."""
    text = clean_text(text)
    app.copy_to_clipboard(text)
    if readonly.on:
        app.notify("Sent to the terminal's clipboard", title="Copied")
        return
    path = paths.home() / "copied.txt"
    try:
        paths.private_folder(path.parent)
        write_atomic(path, text + "\n")
    except OSError as err:
        app.notify(f"Sent to the terminal's clipboard; {path} can't be written: {err.strerror}",
                   severity="warning", markup=False)
        return
    app.notify(f"Sent to the terminal's clipboard and saved in {path}", title="Copied",
               markup=False)
