"""What is chosen by typing a part of a name."""

from __future__ import annotations

from textual.app import App
from textual.widgets import Input

from gpu_panel.common.picking import Palette, pick

from ..panel_kit import until


async def test_enter_before_the_list_has_followed_what_was_typed():
    chosen: list[str] = []
    async with App[None]().run_test() as pilot:
        pick(pilot.app, "a field", [(name, "", lambda name=name: chosen.append(name))
                                    for name in ("task", "train.lr", "batch.size")])
        await pilot.pause()
        typed = pilot.app.screen.query_one(Input)
        assert isinstance(pilot.app.screen, Palette)
        typed.insert_text_at_cursor("size")
        await typed.action_submit()  # in the same moment
        await until(pilot, lambda: chosen)
    assert chosen == ["batch.size"]
