"""Starting the process that owns a run, so that it outlives this one.

It is a new interpreter, or where this process is nothing but the command that launches, a fork of
it: a second start of Python and the same imports once more take as long as all else from a command
to its ranks.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from gpu_engine.common import procs

_OF_A_TERMINAL = {signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTSTP}


def spawn(argv: Sequence[str], log: int, lock: int) -> None:
    """Start a program that inherits `lock`, and writes to the descriptor `log`. Raises OSError."""
    subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
                     start_new_session=True,  # no terminal, no hang-up: it outlives us
                     pass_fds=(lock,))


def can_fork() -> bool:
    """Whether a fork of this process is as good as a new one: it has no second thread, neither of
    Python's nor of a library's, which might hold a lock just then."""
    try:
        return procs.LINUX and len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208
    except OSError:
        return False


def fork(program: Callable[[], int], title: Sequence[str], log: int, lock: int) -> None:
    """Run `program` in a fork of this process, which keeps `lock` of its descriptors and writes to
    `log`. It is called `title` in lists of processes, and ends with what `program` returns.
    Raises OSError. Call it only if `can_fork`.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    gc.freeze()  # nothing of this process's is taken apart in the other
    # What a terminal sends before the session is its own is meant for this process.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        ours = os.fork() != 0
    except OSError:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise
    if ours:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    status = 1
    try:
        _leave(log, lock)
        _call(title)
        for number in signal.sigpending() & _OF_A_TERMINAL:
            signal.sigwait({number})
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        status = program()
    except BaseException:
        logging.exception("the process of a run failed")
    finally:
        sys.stderr.flush()
        os._exit(status)


def _leave(log: int, lock: int) -> None:
    """Leave terminal, folder and files of the process that this is a fork of."""
    os.setsid()
    os.chdir("/")
    logging.root.handlers.clear()  # they may write to files of that process
    null = os.open(os.devnull, os.O_RDONLY)
    for there, here in ((null, 0), (log, 1), (log, 2)):
        os.dup2(there, here)
    for fd in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
        if fd > 2 and fd != lock:
            with contextlib.suppress(OSError):  # the one that lists them is closed already
                os.close(fd)
    sys.stdin = None
    sys.stdout, sys.stderr = (os.fdopen(fd, "w", buffering=1, errors="backslashreplace",
                                        closefd=False) for fd in (1, 2))


def _call(title: Sequence[str]) -> None:
    """Write `title` over the words that this process was started with, as far as there is room.
    Who ends processes by a word of their command, as by a script's name, means the ranks."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])  # arg_start, arg_end: proc_pid_stat(5)
    if 0 < begin < end:
        words = b"\0".join(map(os.fsencode, title))[:end - begin - 1]
        ctypes.memmove(begin, words.ljust(end - begin, b"\0"), end - begin)
