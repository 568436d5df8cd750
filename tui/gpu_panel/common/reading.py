"""A store is read by one owner after another: the preview of a run, then its screen.

An owner may be cancelled at any time. What was being read then has left the reader already, so it
must still be taken in before the next owner goes on.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class Reads(Protocol):
    """A store."""

    reading: asyncio.Future[float] | None
    """The reading that goes on, or was the last."""

    async def read_on(self) -> float:
        """Read a batch and take it in. Returns the seconds until the next time."""
        ...


async def one_at_a_time(store: Reads) -> float:
    """Have the store read on, or wait for the reading that goes on. Returns and raises what that
    does; if the wait is cancelled, it goes on."""
    if store.reading is None or store.reading.done():
        store.reading = asyncio.ensure_future(store.read_on())
    return await asyncio.shield(store.reading)
