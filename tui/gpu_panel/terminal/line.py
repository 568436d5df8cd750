"""The thread that brings the terminal up to date, as its line allows."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable

from gpu_panel.terminal.cells import Picture, blank
from gpu_panel.terminal.frame import Pen, between
from gpu_panel.terminal.pace import Pace

_SYNC = ("\x1b[?2026h", "\x1b[?2026l")
_ASK = "\x1b[6n"
SILENT = 0.2
"""Seconds to wait at the end for a terminal that has never answered."""
MOST_WAITING = 16
"""Sequences that wait to be sent; more than a person could notice."""
_ENTER, _LEAVE = "\x1b[?1049h", "\x1b[?1049l"


class Line:
    """The way to a terminal. `write` never waits: what has not been sent when the next frame is
    drawn is replaced by it. Safe to call from any thread and from signal handlers."""

    def __init__(self, fd: int, size: tuple[int, int], pace: Pace, *,
                 translate: Callable[[str], str] = str,
                 gone: Callable[[], object] = lambda: None) -> None:
        """`size`: (columns, rows). `translate`: makes of a text one of the same width that the
        terminal can show. `gone`: called, in the thread that writes, once nothing can be written
        any more."""
        self._fd = fd
        self._pace = pace
        self._translate, self._gone = translate, gone
        # Re-entrant, as a signal handler may write while the same thread is writing.
        self._changed = threading.Condition(threading.RLock())
        self._picture = Picture(*size)
        self._shown = [blank(size[0]) for _ in range(size[1])]
        self._pen = Pen()
        self._others: list[str] = []
        """What is no drawing, to be sent as it is and before any drawing."""
        self._open = False
        """Whether the terminal shows our screen rather than the shell's."""
        self._drawing = False
        """Whether a frame is half drawn."""
        self._sync = False
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="panel-terminal", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def write(self, text: str) -> None:
        """Draw, or send what is no drawing."""
        with self._changed:
            if text == _SYNC[0]:
                self._drawing = self._sync = True
                return
            if text == _SYNC[1]:
                self._drawing = False
            for other in self._picture.draw(text):
                if other in (_ENTER, _LEAVE):
                    self._open = other == _ENTER
                    self._forget()
                    self._pace.touched(time.monotonic())
                self._others.append(other)
            if not self._drawing:
                self._changed.notify_all()

    def send(self, sequence: str) -> bool:
        """Send a sequence that draws nothing, such as the bell, between two frames. Returns False
        where it is dropped: too many are waiting for a line that stands still, or the terminal
        does not show our screen."""
        with self._changed:
            if not self._open or len(self._others) >= MOST_WAITING:
                return False
            self._others.append(self._translate(sequence))
            self._changed.notify_all()
            return True

    def resize(self, size: tuple[int, int]) -> None:
        """The terminal has another size, (columns, rows), and nobody knows what it shows."""
        with self._changed:
            if size != self.size:
                self._picture = Picture(*size)
                self._forget()
                self._pace.touched(time.monotonic())

    @property
    def size(self) -> tuple[int, int]:
        return self._picture.width, self._picture.height

    def redraw(self) -> None:
        with self._changed:
            self._forget()
            self._picture.drawn.update(dict.fromkeys(range(self._picture.height), 0))
            self._pace.touched(time.monotonic())
            self._changed.notify_all()

    def touched(self) -> None:
        with self._changed:
            self._picture.turn += 1
            self._pace.touched(time.monotonic())
            self._changed.notify_all()

    def answered(self) -> bool:
        """The terminal has told the cursor's position. Returns whether it was we who asked."""
        with self._changed:
            ours = self._pace.answered(time.monotonic())
            self._changed.notify_all()
            return ours

    def settle(self, seconds: float) -> None:
        """Send no more frames, and wait for the terminal's answers: they would otherwise arrive in
        the shell's next line."""
        end = time.monotonic() + (seconds if self._pace.answers else min(seconds, SILENT))
        with self._changed:
            self._open = False
            while self._pace.waiting and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)

    def finish(self) -> None:
        """Return once everything that is no drawing was sent."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def _forget(self) -> None:
        self._shown = [blank(self._picture.width) for _ in range(self._picture.height)]
        self._pen = Pen()

    def _run(self) -> None:
        while (taken := self._next()) is not None:
            text, asked = taken
            began = time.monotonic()
            data = text.encode(errors="replace")
            with self._changed:  # before it is written: the answer may be quick
                if asked:
                    self._pace.asked(began, len(data))
            try:
                self._send(data)
            except OSError:
                self._gone()
                return
            with self._changed:
                self._pace.sent(began, time.monotonic(), len(data))

    def _next(self) -> tuple[str, bool] | None:
        """(what to write next, whether it asks for an answer); None at the end."""
        with self._changed:
            while True:
                if self._others:
                    text = "".join(self._others)
                    self._others.clear()
                    return text, False
                if self._ending:
                    return None
                wait = None
                if self._open and self._picture.drawn and not self._drawing:
                    now = time.monotonic()
                    wait = self._pace.wait(now)
                    if wait <= 0:
                        text = self._compose()
                        if not self._picture.drawn:
                            self._pace.caught_up(now)
                        if text:
                            return (text + _ASK, True) if self._pace.asks(now) else (text, False)
                        continue
                self._changed.wait(wait)

    def _compose(self) -> str:
        """The next piece of the picture."""
        rows = self._picture.newest_first()
        text, done = between(self._shown, self._picture, rows, self._pen, self._pace.piece)
        for row in done:
            del self._picture.drawn[row]
        if not text:
            return ""
        self._pen.move(*self._picture.cursor)
        text = self._translate(text + self._pen.taken())
        return f"{_SYNC[0]}{text}{_SYNC[1]}" if self._sync else text

    def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._fd, view):]
            except BlockingIOError:
                select.select([], [self._fd], [])
