"""The terminal of a rank (`run.debug_rank`) from this end: attaching, and what both ends know.

The supervisor has the pseudo-terminal and listens on a socket in the run folder. What is typed here
goes there in frames, a letter and a length before each; what the rank prints comes back as it is.
What it prints reaches the terminal unfiltered, which is safe as nothing but a process of this very
user can be at the other end (docs/trust.md).
"""

from __future__ import annotations

import os
import select
import signal
import socket
import stat
import struct
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpu_engine.common.errors import UserError
from gpu_engine.runs import trust
from gpu_engine.runs.folder import Run

SOCKET = "debug.sock"
HEAD = struct.Struct("!cH")
"""The letter of a frame and the length of what follows."""
TYPED, SIZE = b"t", b"s"
LINES_COLUMNS = struct.Struct("!HH")
DETACH = b"\x1d"
DETACH_KEY = "ctrl+]"
_AS_BEFORE = b"\x1b[?2004l\x1b[?25h\x1b[0m\r\n"
"""Ends what a line editor at the other end may have begun: bracketed paste, a hidden cursor,
colours."""
_LOOK_EVERY = 0.5
_PATIENCE = 10.0
"""Seconds that a rank which is being started gets."""


def attach(run: Run, rank: int | None, say: Callable[[str], None]) -> bool:
    """Connect this process's terminal with that of a rank (None: the one that has one), until the
    person detaches or the rank ends. `say`: told in words how to detach. Returns whether the rank
    goes on. Raises UserError and OSError."""
    trust.require_ours(run.path)
    has = run.require_plan().spec.run.debug_rank
    if has is None:
        raise UserError(f"no rank of run {run.id} has a terminal: gpu-engine run --debug-rank N "
                        "starts one in which rank N has")
    if rank not in (None, has):
        raise UserError(f"rank {rank} of run {run.id} has no terminal, rank {has} has: "
                        f"gpu-engine attach {run.id} --rank {has}")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UserError("attach needs a terminal, and its input or output is a pipe or a file; "
                        f"gpu-engine logs {run.id} --rank {has} prints what the rank says")
    with _connected(run) as line:
        say(f"attached to rank {has} of run {run.id}; {DETACH_KEY} detaches and leaves it running")
        with _raw(sys.stdin.fileno()):
            return _pass_on(line, sys.stdin.fileno(), sys.stdout.fileno())


@contextmanager
def inside(folder: Path) -> Iterator[tuple[int, str]]:
    """A descriptor of the run folder, and the socket's address, as short as it has to be (unix(7):
    107 bytes) where the system has a way. Raises OSError, also for a link."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield held, f"/proc/self/fd/{held}/{SOCKET}"
    finally:
        os.close(held)


def is_mine(line: socket.socket) -> bool:
    """Whether the process at the other end is this user's. Where the system does not tell, the
    folder's mode has to do."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    _, user, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return user == os.geteuid()


@contextmanager
def _connected(run: Run) -> Iterator[socket.socket]:
    """A connection to the supervisor, as soon as that listens."""
    end = time.monotonic() + _PATIENCE
    with inside(run.path) as (held, name), socket.socket(socket.AF_UNIX) as line:
        while True:
            try:
                found = os.stat(SOCKET, dir_fd=held, follow_symlinks=False)
                if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
                    raise UserError(f"{run.path / SOCKET} is no socket of yours")
                line.connect(name)
                break
            except (FileNotFoundError, ConnectionRefusedError) as err:
                if not run.supervised() or time.monotonic() > end:
                    raise UserError(_why_not(run, err)) from None
            time.sleep(0.05)
        if not is_mine(line):
            raise UserError(f"another user listens on {run.path / SOCKET}")
        yield line


def _why_not(run: Run, err: OSError) -> str:
    state = run.state()
    if isinstance(err, ConnectionRefusedError):
        return f"the supervisor of run {run.id} is gone, and the terminal with it"
    if not state.live:
        return f"run {run.id} is not running: it is {state.state}"
    return f"the rank of run {run.id} has not started yet: it is {state.state}"


@contextmanager
def _raw(terminal: int) -> Iterator[None]:
    """Every key goes to the rank, ctrl+c too. The terminal is as before afterwards, also where a
    signal ends this process."""
    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    main = threading.current_thread() is threading.main_thread()
    ends = (signal.SIGTERM, signal.SIGHUP) if main else ()
    before = {n: signal.signal(n, leave) for n in ends}
    kept = termios.tcgetattr(terminal)
    try:
        tty.setraw(terminal, termios.TCSADRAIN)  # what is typed already is for the rank
        yield
    finally:
        with suppress(termios.error):  # it is gone
            termios.tcsetattr(terminal, termios.TCSAFLUSH, kept)
        for number, handler in before.items():
            signal.signal(number, handler)


def _pass_on(line: socket.socket, typed: int, shown: int) -> bool:
    """Pass on what is typed, what the rank prints and the window's size. Returns whether the person
    has detached: otherwise the rank has ended."""
    size = None
    try:
        while True:
            now = os.get_terminal_size(shown)
            if now != size and now.lines and now.columns:
                _send(line, SIZE, LINES_COLUMNS.pack(now.lines, now.columns))
            size = now
            ready, _, _ = select.select([line, typed], [], [], _LOOK_EVERY)
            if line in ready:
                data = line.recv(1 << 16)
                if not data:
                    return False
                _write(shown, data)
            if typed in ready:
                keys, detaches, _ = os.read(typed, 4096).partition(DETACH)
                if keys:
                    _send(line, TYPED, keys)
                if detaches or not keys:  # or the terminal is gone
                    return True
    except ConnectionError:
        return False
    finally:
        with suppress(OSError):
            _write(shown, _AS_BEFORE)


def _send(line: socket.socket, kind: bytes, data: bytes) -> None:
    line.sendall(HEAD.pack(kind, len(data)) + data)


def _write(to: int, data: bytes) -> None:
    while data:
        data = data[os.write(to, data):]
