"""Textual's driver for terminals, which sends only what changed and no more than the line takes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Iterable
from typing import Any

from textual import events
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

from gpu_panel.common import textual_private
from gpu_panel.terminal import plain
from gpu_panel.terminal.background import Answers, heard
from gpu_panel.terminal.line import Line
from gpu_panel.terminal.pace import Pace

SETTLE = 1.0
"""Seconds to wait at the end for an answer of the terminal."""
_DONE = (events.InputEvent, events.Paste)
"""What a person does."""
_ESCAPE = "[27u"
"""What makes of a lone ESC, which may begin anything, the escape key at once (kitty's protocol)."""
_ESC_DIGIT = re.compile("\x1b(?=[0-9])")


class _Parser(textual_private.Parser):
    """Textual's, which gets what was typed before it began, and does not see the terminal's late
    answer about its background. An escape and a digit right behind it stay two keys: leaving a
    field and going to a pane; Textual would make "¡" of escape and 1, as of alt and 1 on a Mac."""

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._answers = Answers(heard.owed)
        self._typed, heard.typed = heard.typed, ""
        self._escaped = False
        """Whether an ESC came last, and no time has passed since."""

    def feed(self, data: str) -> Iterable[Message]:
        if data:
            data, self._typed = self._typed + data, ""
        left = self._answers.without(data)
        if self._escaped and left[:1].isdecimal():
            left = _ESCAPE + left
        self._escaped = left.endswith("\x1b")
        return super().feed(_ESC_DIGIT.sub("\x1b" + _ESCAPE, left)) if left or not data else ()

    def tick(self) -> Iterable[Message]:
        """Called ten times a second, also where nothing is typed."""
        if self._typed:
            typed, self._typed = self._typed, ""
            yield from self.feed(typed)
        for message in super().tick():
            self._escaped = False
            yield message


textual_private.parse_with(_Parser)


class QuietDriver(LinuxDriver):
    """Textual sends a whole pane if a cell of it changes; this sends the cell."""

    def __init__(self, app: Any, **options: Any) -> None:
        """`app`: the panel, which gets it as `terminal`."""
        super().__init__(app, **options)
        self.app = app
        app.terminal = self
        self._line: Line | None = None
        self._suspended = False
        self._event_loop = asyncio.get_running_loop()

    def start_application_mode(self) -> None:
        env = os.environ
        relayed = "TMUX" in env or env.get("TERM", "").startswith(("screen", "tmux"))
        if sys.__stderr__ is not None:
            self._line = Line(sys.__stderr__.fileno(), self.app.size, Pace(answering=not relayed),
                              translate=plain.translation(env), gone=self._gone)
            self._line.start()
        super().start_application_mode()

    def _gone(self) -> None:
        """End the panel: without a terminal, and where no SIGHUP tells so, it would go on for ever,
        and read the end of its input again and again."""
        self._event_loop.call_soon_threadsafe(self.app.exit, None, 128 + signal.SIGHUP)

    def suspend_application_mode(self) -> None:
        self._suspended = True
        super().suspend_application_mode()

    def resume_application_mode(self) -> None:
        """Resume only what was suspended. The kernel sends SIGCONT right behind the SIGHUP of a
        terminal that closes: resumed then, a second thread would read the end of the input again
        and again, and the panel that has ended would never be gone."""
        if self._suspended:
            self._suspended = False
            super().resume_application_mode()

    def write(self, data: str) -> None:
        if self._line is not None:
            self._line.resize(self.app.size)
            self._line.write(data)

    def process_message(self, message: Message) -> None:
        line = self._line
        if line is not None:
            if isinstance(message, events.CursorPosition):
                if line.answered():
                    return
            elif isinstance(message, (*_DONE, events.Resize, events.AppFocus)):
                line.touched()
        super().process_message(message)

    def send(self, sequence: str) -> None:
        """Send a sequence that draws nothing, such as the bell; it may be dropped."""
        if self._line is not None:
            self._line.send(sequence)

    def redraw(self) -> None:
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
