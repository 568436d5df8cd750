"""The pseudo-terminal of one rank (`run.debug_rank`). The supervisor holds it, so it outlives
panels and shells and needs nobody who is attached, and what the rank prints is in its log as ever.

There is no second thread or process: while there is such a terminal the supervisor, between two
looks at its ranks, waits for it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import termios
import time
from dataclasses import dataclass, field
from pathlib import Path

from gpu_engine.common.files import open_inside
from gpu_engine.events.paths import inside as folder_of
from gpu_engine.runs import terminal

_RECENT = 8192
"""Bytes of output that somebody who attaches gets at once, so that a prompt is seen."""
_BEHIND = 1 << 20
"""Bytes that somebody who is attached may be behind; one who is further is left to the log."""
_UNREAD = 1 << 16
"""Bytes typed ahead of the rank from which on no more are taken."""


@dataclass(slots=True, eq=False)
class _Attached:
    """Somebody who is attached."""

    line: socket.socket
    got: bytearray = field(default_factory=bytearray)
    """The beginning of a frame."""
    owed: bytearray = field(default_factory=bytearray)
    """What is still to be sent."""


class Terminal:
    """A terminal for one rank, and all that are attached to it: all see the same, and all type."""

    def __init__(self, run: Path, log: Path) -> None:
        """In the run folder `run`; what is printed goes into `log`. Raises OSError."""
        self._run = run
        self._ours, self._theirs = os.openpty()
        os.set_blocking(self._ours, False)
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = open_inside(*folder_of(log), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._held_back = b""
        self._recent = bytearray()
        self._typed = bytearray()
        self._all: list[_Attached] = []
        self._hung_up = False
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.setblocking(False)
        with terminal.inside(run) as (held, name):
            with contextlib.suppress(FileNotFoundError):  # of an attempt before
                os.unlink(terminal.SOCKET, dir_fd=held)
            self._listener.bind(name)
            os.chmod(terminal.SOCKET, 0o600, dir_fd=held)
            self._listener.listen(8)

    @property
    def theirs(self) -> int:
        """The rank's end, to be started with and then to be closed by `started`."""
        return self._theirs

    def started(self) -> None:
        """The rank's process has its end now."""
        os.close(self._theirs)

    def pump(self, seconds: float) -> None:
        """For so long, pass on what the rank prints and what is typed."""
        end = time.monotonic() + seconds
        while True:
            poll = select.poll()
            poll.register(self._listener, select.POLLIN)
            if not self._hung_up:
                poll.register(self._ours, select.POLLIN | (select.POLLOUT if self._typed else 0))
            for one in self._all:
                takes = len(self._typed) < _UNREAD
                poll.register(one.line, (select.POLLIN if takes else 0)
                              | (select.POLLOUT if one.owed else 0))
            ready = dict(poll.poll(max(end - time.monotonic(), 0) * 1000))
            if self._listener.fileno() in ready:
                self._accept()
            if self._ours in ready:
                self._read()
                self._type()
            for one in [a for a in self._all if a.line.fileno() in ready]:
                if not self._read_frames(one) or not self._pay(one):
                    self._drop(one)
            if time.monotonic() >= end:
                return

    def close(self) -> None:
        """The rank has ended: pass on the last that it has printed, and let go of all."""
        while self._read():
            pass
        if self._held_back:
            self._write_log(b"")
        for one in list(self._all):
            one.line.settimeout(1.0)
            with contextlib.suppress(OSError):
                one.line.sendall(one.owed)
            self._drop(one)
        self._listener.close()
        with contextlib.suppress(OSError), terminal.inside(self._run) as (held, _):
            os.unlink(terminal.SOCKET, dir_fd=held)
        os.close(self._ours)
        os.close(self._log)

    # --- the rank -----------------------------------------------------------------------------

    def _read(self) -> bool:
        """Take what the rank has printed. Returns whether there was anything."""
        try:
            data = os.read(self._ours, 1 << 16)
        except BlockingIOError:
            return False
        except OSError as err:  # EIO: nobody has the rank's end open any more
            if err.errno != errno.EIO:
                raise
            data = b""
        if not data:
            self._hung_up = True
            return False
        self._write_log(data)
        self._recent = (self._recent + data)[-_RECENT:]
        for one in list(self._all):
            one.owed += data
            if len(one.owed) > _BEHIND or not self._pay(one):
                self._drop(one)
        return True

    def _write_log(self, data: bytes) -> None:
        """Into the log, with ends of lines as in every log: a terminal adds a carriage return."""
        text = self._held_back + data
        self._held_back = b"\r" if data and text.endswith(b"\r") else b""
        text = text.removesuffix(self._held_back).replace(b"\r\n", b"\n")
        with contextlib.suppress(OSError):  # a full disk must not end training
            while text:
                text = text[os.write(self._log, text):]

    def _type(self) -> None:
        if self._typed and not self._hung_up:
            with contextlib.suppress(OSError):
                del self._typed[:os.write(self._ours, self._typed)]

    # --- who is attached ----------------------------------------------------------------------

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            line, _ = self._listener.accept()
            if not terminal.is_mine(line):
                line.close()
                return
            line.setblocking(False)
            new = _Attached(line)
            if self._all:
                new.owed += b"--- another terminal is attached, too: both see and type ---\r\n"
            new.owed += self._recent
            self._all.append(new)

    def _drop(self, one: _Attached) -> None:
        if one in self._all:
            self._all.remove(one)
            one.line.close()

    def _pay(self, one: _Attached) -> bool:
        """Send what is owed, as far as it is taken. Returns whether the line still stands."""
        try:
            if one.owed:
                del one.owed[:one.line.send(one.owed)]
        except BlockingIOError:
            pass
        except OSError:
            return False
        return True

    def _read_frames(self, one: _Attached) -> bool:
        """Take frames. Returns whether the line still stands."""
        try:
            data = one.line.recv(1 << 16)
        except BlockingIOError:
            return True
        except OSError:
            return False
        one.got += data
        head = terminal.HEAD
        while len(one.got) >= head.size:
            kind, length = head.unpack_from(one.got)
            if len(one.got) < head.size + length:
                break
            text = bytes(one.got[head.size:head.size + length])
            del one.got[:head.size + length]
            if kind == terminal.TYPED:
                self._typed += text
            elif kind == terminal.SIZE and length == terminal.LINES_COLUMNS.size:
                termios.tcsetwinsize(self._ours, terminal.LINES_COLUMNS.unpack(text))
        self._type()
        return bool(data)
