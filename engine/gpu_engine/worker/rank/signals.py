"""Signals of a rank: they set a flag and nothing more, and death of the parent is death here.

Standard library only, so that all of it is armed before torch is imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys

_STOPS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Signals:
    """SIGTERM, SIGINT and SIGUSR1 (Slurm's warning) ask this rank to finish its step, save and
    end. SIGUSR2 prints the stacks of all threads to stderr, whatever the main thread does."""

    def __init__(self) -> None:
        self.stop_requested = False
        """Whether a signal asked for a stop. Read at step boundaries, by the main thread."""
        self._read = -1

    def install(self) -> None:
        """Main thread only."""
        with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr may be no file
            faulthandler.register(signal.SIGUSR2, all_threads=True)
            faulthandler.enable()
        self._read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # A Python handler runs only between two bytecodes; this pipe hears of the signal while
        # the main thread is inside a call that waits, so that another thread can.
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in _STOPS:
            signal.signal(number, self._request_stop)

    def arrived(self) -> bool:
        """Whether a request to stop has come, though the main thread may not have taken notice yet.
        For any thread."""
        if self.stop_requested:
            return True
        try:
            data = os.read(self._read, 4096)
        except OSError:
            return False
        return any(number in data for number in _STOPS)

    def _request_stop(self, number: int, frame: object) -> None:
        self.stop_requested = True


def die_with_parent() -> None:
    """Have the kernel end this process when the thread that started it ends.

    Called from the main thread, as early as possible. The parent may be gone already, which the
    kernel would never tell: hence the look before and after (prctl(2)).
    """
    parent = os.getppid()
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def in_loader_worker() -> None:
    """What a DataLoader worker must undo and arm: it inherits the rank's handlers by fork.

    Ctrl-C, Slurm's warning, and the SIGTERM that torchrun sends to a rank's whole process group
    are the rank's business: a worker that dies of them would spoil the save. SIGTERM itself
    still ends a worker, as that is how DataLoader ends one. It never outlives the rank.
    """
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    die_with_parent()
