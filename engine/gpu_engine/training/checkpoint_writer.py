"""A thread that writes a checkpoint while training goes on, one at a time.

Loader workers are forked from this process, also while it writes. A fork copies locks as they
are, held by a thread that the child does not have; so a fork waits until the writing thread is
between two pieces, which it asks for thousands of times a checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator


class Gate:
    """Keeps the writing thread and forks apart."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._again = threading.Event()
        self._forking = 0
        os.register_at_fork(before=self._before, after_in_parent=self._after,
                            after_in_child=self._in_child)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """What the thread writes, it writes inside."""
        with self._lock:
            yield

    def pause(self) -> None:
        """Inside: let a fork that waits happen."""
        while self._forking:
            self._again.clear()
            self._lock.release()
            self._again.wait()
            self._lock.acquire()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Inside: forks may happen, as in a call to the kernel that takes long."""
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
        self._again.set()

    def _in_child(self) -> None:
        self._lock, self._again, self._forking = threading.Lock(), threading.Event(), 0


gate = Gate()


class Writer:
    """At most one write under way."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._busy = False
        self._after: list[Callable[[], None]] = []
        self._result = ""
        self._error: BaseException | None = None

    def start(self, write: Callable[[], str]) -> None:
        """Begin `write`, which says what was wrong with it ("": nothing). The one before was
        waited for."""
        self._result, self._error, self._busy = "", None, True
        self._thread = threading.Thread(target=self._run, args=(write,), name="checkpoint")
        self._thread.start()

    def after(self, act: Callable[[], None]) -> None:
        """Do something about what was written, if it was: now, or as soon as it is."""
        with self._lock:
            if self._busy:
                self._after.append(act)
                return
        if self._error is None and not self._result:
            act()

    def wait(self) -> str:
        """Wait for the write; what it said. Raises what it raised, once."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._result

    def _run(self, write: Callable[[], str]) -> None:
        try:
            with gate.inside():
                self._result = write()
                while act := self._next():
                    if not self._result:
                        act()
        except BaseException as err:  # noqa: BLE001 - raised in `wait`
            self._error = err
        finally:
            self._busy = False

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            if self._after:
                return self._after.pop(0)
            self._busy = False
            return None
