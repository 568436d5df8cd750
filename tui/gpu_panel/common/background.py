"""Blocking work off the screen's loop, in threads that never hold up the end of the program.

asyncio's own executor is joined when the loop closes: one driver call that never returns would
keep the panel from quitting. Daemon threads are left behind instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T], *, name: str = "panel-work") -> T:
    """Run `work` in a daemon thread and wait for it. Raises what it raises.

    Cancelling the wait leaves the thread to itself; what it returns is dropped.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(result)  # type: ignore[arg-type]
        else:
            done.set_exception(error)

    def body() -> None:
        result, error = None, None
        try:
            result = work()
        except Exception as err:  # noqa: BLE001  handed to the waiter
            error = err
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=body, name=name, daemon=True).start()
    return await done


def leave(work: Callable[[], object], *, name: str = "panel-close") -> None:
    """Run `work` in a daemon thread and don't wait."""
    def body() -> None:
        with contextlib.suppress(Exception):
            work()

    threading.Thread(target=body, name=name, daemon=True).start()
