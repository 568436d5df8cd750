"""A rank as a process: its signals, its end, its output.

Standard library only, so that all of it is set up before torch is imported.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import faulthandler
import gc
import io
import os
import signal
import sys
import threading
from itertools import compress
from typing import Any, NoReturn

_STOPS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
_forking = threading.local()
"""The mask of signals that a thread had before it began to fork."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Signals:
    """SIGTERM, SIGINT and SIGUSR1 (Slurm's warning before the time limit) ask this rank to finish
    its step, save and end. SIGUSR2 prints the stacks of all threads to stderr, whatever the main
    thread is doing."""

    def __init__(self) -> None:
        self.stop_requested = False
        """Whether a signal has asked for a stop. The main thread reads it between two steps."""
        self._read = -1
        self._before: dict[int, Any] = {}

    def install(self) -> None:
        """Set the handlers. For the main thread only."""
        with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr may be no file
            faulthandler.register(signal.SIGUSR2, all_threads=True)
            faulthandler.enable()
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(write, False)
        # A Python handler does not run while the main thread is inside a blocking call. The signal
        # is also written to this pipe, where another thread sees it.
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self._before = {n: signal.signal(n, self._request_stop) for n in _STOPS}
        os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=self._forked)

    def put_back(self) -> str:
        """Set the handlers again that a task or library has replaced: a signal would end the run by
        theirs, and what it has trained would be lost. Returns a sentence about them, or "". For the
        main thread only."""
        said = []
        for number in self._before:
            handler = signal.getsignal(number)
            if handler != self._request_stop:
                signal.signal(number, self._request_stop)
                said.append(
                    f"the handler for {signal.Signals(number).name} that the task or a library has "
                    f"set ({getattr(handler, '__qualname__', handler)}) is not called: the signal "
                    "has the run save and end")
        return "; ".join(said)

    def arrived(self) -> bool:
        """Whether a request to stop has come, even if the main thread has not handled it yet, or
        another handler has. For any thread."""
        if not self.stop_requested:
            with contextlib.suppress(OSError):
                data = os.read(self._read, 4096)
                if any(number in data for number in _STOPS):
                    self.stop_requested = True  # never False: a handler may have set it by now
        return self.stop_requested

    def _request_stop(self, number: int, frame: object) -> None:
        self.stop_requested = True

    def _forked(self) -> None:
        """In a forked child, restore the handlers from before `install`: who ends the child does
        not ask the rank to stop."""
        signal.set_wakeup_fd(-1)
        for number, before in self._before.items():
            if signal.getsignal(number) == self._request_stop:
                # Slurm may send its warning to all processes: it must not end those that the rank
                # still needs.
                signal.signal(number, signal.SIG_IGN if number == signal.SIGUSR1 else before)
        _unblock()


def _block() -> None:
    """Hold back the signals while this thread forks: until `_forked`, the child has the rank's
    handlers and pipe, and who ends it then would end the run."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def die_with_parent() -> None:
    """Have the kernel end this process when the thread that started it ends.

    Call it from the main thread, as early as possible. The kernel sends no signal for a parent
    that is gone already, so the parent is compared before and after the call (prctl(2)).
    """
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def prepare_sockets() -> None:
    """Make the folder for the sockets over which loader workers hand tensors to their rank, before
    the first of them is started: all use it then, and it goes with the rank. Each worker's own
    would stay, as workers that live over all epochs are ended by a signal."""
    from multiprocessing import util  # after `_skip_the_rest`: what it registers is called before

    util.get_temp_dir()


def in_loader_worker(worker: int) -> None:
    """Set up the signals of DataLoader's worker of this number.

    Only the rank handles Ctrl-C, Slurm's warning, and the SIGTERM that torchrun sends to a rank's
    process group: a worker that dies of them would spoil the save. For a SIGTERM to the worker
    itself torch has set a handler by now, which stays: it ends the worker, and with exit code 0 if
    its rank sent it, so that a rank that ends does not take its workers for failed. A worker never
    outlives its rank.
    """
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    die_with_parent()

# ------------------------------------------------------------------------------------------------
# How a rank's process ends: as any Python does, but without taking torch's modules apart.
#
# That takes half a second, in which a finished run would still look like a running one.


PATIENCE = 120.0
"""Seconds that a rank which has failed may take to end: a thread that waits for ever must not keep
a failed run, and its GPU."""
_WRITING = 2.0
_status: int | None = None


def exit_process(status: int) -> NoReturn:
    """End the process: wait for threads, call what is registered with atexit, write what files
    still hold. For the main thread only, at the very end of the program."""
    global _status
    _status = status
    if status == 1:
        timer = threading.Timer(PATIENCE, exit_at_once, (status,))
        timer.daemon = True
        timer.start()
    sys.exit(status)


@atexit.register  # first, before anybody else's, and so called last
def _skip_the_rest() -> None:
    if _status is not None:
        write_files()
        os._exit(_status)


def exit_at_once(status: int) -> NoReturn:
    """End the process from any thread, whatever the main thread is stuck in."""
    # The main thread may be stuck in a write, and hold the file's lock.
    writing = threading.Thread(target=write_files, daemon=True)
    writing.start()
    writing.join(_WRITING)
    os._exit(status)


def write_files() -> None:
    """Write what files hold that nobody has closed, as Python does when it ends."""
    gc.unfreeze()
    kinds: list[Any] = [io.IOBase.__base__]
    for kind in kinds:
        kinds += kind.__subclasses__()
    objects = gc.get_objects()
    # Half a million with torch, so what looks at each of them is written in C.
    for file in compress(objects, map(set(kinds).__contains__, map(type, objects))):
        with contextlib.suppress(Exception):
            file.flush()

# ------------------------------------------------------------------------------------------------
# Lets a rank's stdout and stderr survive a full disk. Both go to a file, and training must not
# fail because there is no room for a line of output.


_before: list[Any] = []  # kept: deleting these objects would close descriptors still in use

_FULL = (errno.ENOSPC, errno.EDQUOT)


class _Forgiving(io.FileIO):
    """A file that drops what a full disk can't take."""

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        size, done = len(view), 0
        try:
            while done < size:  # there is no buffer above this to retry a short write
                done += super().write(view[done:]) or 0
        except OSError as err:
            if err.errno not in _FULL:
                raise
        return size


def forgive_full_disk() -> None:
    """Replace sys.stdout and sys.stderr by files that drop output on a full disk instead of
    raising. Streams without a file descriptor stay as they are."""
    for name in ("stdout", "stderr"):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            before = getattr(sys, name)
            before.flush()
            _before.append(before)
            raw = _Forgiving(before.fileno(), "wb", closefd=False)
            setattr(sys, name, io.TextIOWrapper(
                raw, encoding=before.encoding, errors=before.errors, write_through=True))
