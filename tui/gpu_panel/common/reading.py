"""The base of the stores: what is read of runs, as long as somebody looks at it."""

from __future__ import annotations

import asyncio


class Followed:
    """It is read by one owner after another: the preview of a run, then its screen. `version` rises
    whenever something has changed.

    An owner may be cancelled at any time. What was being read then has left the reader already, so
    it is still taken in before the next owner goes on.
    """

    def __init__(self) -> None:
        self.version = 0
        self.caught_up = False
        """Whether everything that was written before it was opened has been read."""
        self.reading: asyncio.Future[float] | None = None
        """The reading that goes on, or was the last."""

    async def read_on(self) -> float:
        """Read a batch and take it in. Returns the seconds until the next time."""
        raise NotImplementedError

    async def once(self) -> float:
        """The same, for an owner that may be cancelled."""
        if self.reading is None or self.reading.done():
            self.reading = asyncio.ensure_future(self.read_on())
        return await asyncio.shield(self.reading)

    async def follow(self) -> None:
        """Read until the owner cancels this task; another can go on from there."""
        while True:
            await asyncio.sleep(await self.once())
