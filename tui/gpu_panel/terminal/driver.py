"""Textual's driver for terminals, which sends only what changed and no more than the line takes."""

from __future__ import annotations

import os
import signal

from textual import events
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

from gpu_panel.terminal import plain
from gpu_panel.terminal.line import Line
from gpu_panel.terminal.pace import Pace

SETTLE = 1.0
"""Seconds to wait at the end for an answer of the terminal."""


class QuietDriver(LinuxDriver):
    """Textual sends a whole pane if a cell of it changes; this sends the cell."""

    _line: Line | None = None

    def start_application_mode(self) -> None:
        env = os.environ
        relayed = "TMUX" in env or env.get("TERM", "").startswith(("screen", "tmux"))
        if self._file is not None:
            self._line = Line(self._file.fileno(), self._size_now(), Pace(answering=not relayed),
                              translate=plain.translation(env), gone=self._gone)
            self._line.start()
        super().start_application_mode()

    def _size_now(self) -> tuple[int, int]:
        size = self._app.size
        return size.width, size.height

    def _gone(self) -> None:
        """End the panel: without a terminal, and where no SIGHUP tells so, it would go on for ever,
        and read the end of its input again and again."""
        self._loop.call_soon_threadsafe(self._app.exit, None, 128 + signal.SIGHUP)

    def write(self, data: str) -> None:
        if self._line is not None:
            self._line.resize(self._size_now())
            self._line.write(data)

    def process_message(self, message: Message) -> None:
        line = self._line
        if line is not None:
            if isinstance(message, events.CursorPosition):
                if line.answered():
                    return
            elif isinstance(message, events.InputEvent | events.Resize | events.AppFocus):
                line.touched()
        super().process_message(message)

    def redraw(self) -> None:
        """Send the whole screen again."""
        if self._line is not None:
            self._line.redraw()

    def stop_application_mode(self) -> None:
        if self._line is not None:
            self._line.settle(SETTLE)
        super().stop_application_mode()

    def close(self) -> None:
        if self._line is not None:
            self._line.finish()
            self._line = None
        super().close()
