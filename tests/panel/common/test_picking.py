"""What is chosen by typing a part of a name."""

from __future__ import annotations

import asyncio

from textual.app import App
from textual.widgets import Input

from gpu_panel.common.picking import pick

from ..panel_kit import until


async def test_enter_takes_what_was_typed_whether_or_not_the_list_has_followed():
    chosen: list[str] = []
    over = asyncio.Event()
    async with App[None]().run_test() as pilot:
        app = pilot.app
        app.run_worker(over.wait())  # as the panel's own, which read devices
        for times, listed in enumerate((False, True), 1):
            pick(app, "a field", [(name, "", lambda name=name: chosen.append(name))
                                  for name in ("task", "train.lr", "batch.size")])
            await pilot.pause()
            palette = app.screen
            typed = palette.query_one(Input)
            typed.insert_text_at_cursor("size")
            if listed:
                await until(pilot, lambda palette=palette: not any(
                    w.node is palette for w in app.workers))
            await typed.action_submit()
            await until(pilot, lambda times=times: len(chosen) == times)
        over.set()
    assert chosen == ["batch.size"] * 2
