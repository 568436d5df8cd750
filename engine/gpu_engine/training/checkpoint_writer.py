"""A thread that writes a checkpoint while training goes on, one checkpoint at a time.

Loader workers may be forked from this process meanwhile. A fork would copy a lock that the writing
thread holds, and nobody in the child would ever release it. So a fork waits until the writing
thread is between two pieces of a file, which happens thousands of times in a checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait


class Gate:
    """Keeps forks of this process from happening while the thread writes a piece."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fork_done = threading.Event()
        self._forking = 0
        os.register_at_fork(before=self._before, after_in_parent=self._after,
                            after_in_child=self._in_child)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Within this, forks wait. The thread does all its writing here."""
        with self._lock:
            yield

    def pause(self) -> None:
        """Within `inside`: let forks happen that are waiting now."""
        while self._forking:
            self._fork_done.clear()
            self._lock.release()
            self._fork_done.wait()
            self._lock.acquire()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Within `inside`: let forks happen at any time, as during a long call to the kernel."""
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()

    def _before(self) -> None:
        self._forking += 1
        self._lock.acquire()

    def _after(self) -> None:
        self._forking -= 1
        self._lock.release()
        self._fork_done.set()

    def _in_child(self) -> None:
        self._lock, self._fork_done, self._forking = threading.Lock(), threading.Event(), 0


gate = Gate()


class Writer:
    """Runs one write at a time in a thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._jobs: list[Future[str]] = []

    def start(self, write: Callable[[], str]) -> None:
        """Start `write` in the thread. It returns what went wrong, or "". The previous write must
        have been waited for."""
        self._jobs = [self._thread.submit(_inside, write)]

    def after(self, act: Callable[[], None]) -> None:
        """Call `act`, in the thread, once the write is done, if it succeeded."""
        written = self._jobs[0]
        self._jobs.append(self._thread.submit(_inside, lambda: written.result() or act() or ""))

    def wait(self) -> str:
        """Wait for the write and return what it returned. Raises what it raised, once."""
        wait(self._jobs)
        jobs, self._jobs = self._jobs, []
        said = [job.result() for job in jobs]
        return said[0] if said else ""


def _inside(work: Callable[[], str]) -> str:
    with gate.inside():
        return work()
