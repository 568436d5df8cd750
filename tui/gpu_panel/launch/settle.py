"""What is done once the launch screen has been drawn and its first figures have come."""

from __future__ import annotations

import asyncio
import gc
from importlib import import_module

from gpu_panel.common.background import in_thread

SETTLED = 2.0
"""Seconds after the first frame until all code that is always used has been imported."""
NEXT = ("gpu_panel.run.screen",)
"""Modules of the screen that is opened next in most cases: importing them takes longer than
everything else in opening it."""


async def settle() -> None:
    """Import what is needed next."""
    await asyncio.sleep(SETTLED)
    try:
        await in_thread(lambda: [import_module(name) for name in NEXT], name="panel-import")
    finally:
        gc.freeze()  # nearly all that is there stays: searching it holds up a key for 50 ms
