"""The agent's two ends: requests come in, answers go out, a line each and whole."""

from __future__ import annotations

import os
import threading

from gpu_engine.remote.reach import protocol
from gpu_engine.remote.reach.protocol import Answer


class Over(Exception):
    """Nobody wants to hear more of this request."""


class Wire:
    """Where answers go. Any thread may send."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()

    def send(self, number: int, answer: Answer) -> None:
        """Raises OSError where nobody is there any more."""
        line = protocol.pack(number, answer)
        if len(line) > protocol.LONGEST:
            line = protocol.pack(number, protocol.Failed(
                f"the answer has {len(line):,} bytes; {protocol.LONGEST:,} may be"))
        with self._lock:
            view = memoryview(line)
            while view:
                view = view[os.write(self._fd, view):]


class Asked:
    """A request that is being worked on."""

    def __init__(self, wire: Wire, number: int) -> None:
        self._wire, self._number = wire, number
        self._over = threading.Event()
        self._ended = threading.Event()

    def send(self, answer: Answer) -> None:
        """Raises Over where no more is wanted, OSError where nobody is there."""
        if self._over.is_set():
            raise Over
        self._wire.send(self._number, answer)

    def pause(self, seconds: float) -> None:
        """Wait. Raises Over as soon as no more is wanted."""
        if self._over.wait(seconds):
            raise Over

    def cancel(self, seconds: float) -> None:
        """End it, and wait up to `seconds` until it has: what is asked next finds nothing of it,
        as a port that it listened on."""
        self._over.set()
        self._ended.wait(seconds)

    def end(self) -> None:
        """Its verb has returned."""
        self._ended.set()
