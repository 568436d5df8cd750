"""A rank's signals, which only set a flag, and its end when its parent dies.

Standard library only, so that both are set up before torch is imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import threading
from typing import Any

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
                signal.signal(number, _nothing if number == signal.SIGUSR1 else before)
        _unblock()


def _block() -> None:
    """Hold back the signals while this thread forks: until `_forked`, the child has the rank's
    handlers and pipe."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _nothing(number: int, frame: object) -> None:
    return


def die_with_parent() -> None:
    """Have the kernel end this process when the thread that started it ends.

    Call it from the main thread, as early as possible. The kernel sends no signal for a parent
    that is gone already, so the parent is compared before and after the call (prctl(2)).
    """
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def in_loader_worker() -> None:
    """Set up the signals of a DataLoader worker.

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
