"""Run blocking work in daemon threads, so that it stops neither the event loop nor the exit.

asyncio joins the threads of its own executor when the loop closes: a driver call that never returns
would keep the panel from quitting.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a daemon thread and wait for its result. Raises what it raises.

    If the wait is cancelled, the thread runs on and its result is dropped.
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

    threading.Thread(target=body, name="panel-work", daemon=True).start()
    return await done


def leave(work: Callable[[], object], *, name: str = "panel-close") -> None:
    def body() -> None:
        with contextlib.suppress(Exception):
            work()

    threading.Thread(target=body, name=name, daemon=True).start()
