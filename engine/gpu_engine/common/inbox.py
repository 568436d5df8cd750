"""What threads have to tell the main thread, which signals may interrupt while it waits."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """Items in the order in which they were put, by any thread.

    Not queue.SimpleQueue: in Python 3.11 and 3.12 its `get(timeout=…)` waits for ever if a signal
    comes just as the time is over. It then goes on with what is left of the time, a negative
    number, which means no limit (Modules/_queuemodule.c). A request to stop was lost that way.
    """

    def __init__(self) -> None:
        self._items: queue.Queue[T] = queue.Queue()

    def put(self, item: T) -> None:
        """Add an item, without waiting."""
        self._items.put(item)

    def take(self, seconds: float) -> Iterator[T]:
        """Everything that is there, after waiting up to so many seconds for the first item."""
        try:
            yield self._items.get(timeout=seconds)
            while True:
                yield self._items.get_nowait()
        except queue.Empty:
            return
