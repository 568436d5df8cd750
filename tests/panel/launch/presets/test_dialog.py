"""Presets are listed and loaded, and changes are not lost without asking."""

from __future__ import annotations

from dataclasses import replace

import pytest
from textual.widgets import OptionList

from gpu_engine.spec import presets
from gpu_panel.common.dialogs import Confirm
from gpu_panel.launch.presets import PresetsScreen

from ....conftest import gpus
from ...panel_kit import panel, settled, type_into, until

pytestmark = pytest.mark.usefixtures("home")


async def on(pilot, kind):
    await until(pilot, lambda: isinstance(pilot.app.screen, kind))
    await pilot.pause()
    return pilot.app.screen


async def pick(pilot, name):
    await pilot.press("ctrl+o")
    listed = await on(pilot, PresetsScreen)
    box = listed.query_one(OptionList)
    await until(pilot, lambda: box.option_count)
    box.highlighted = box.get_option_index(name)
    await pilot.press("enter")


async def test_all_are_listed_with_what_they_say_and_another_is_loaded():
    presets.own_folder().mkdir(parents=True)
    (presets.own_folder() / "bad.toml").write_text("[bold]\nx = 1\n")
    async with panel(gpus(2)) as (pilot, screen):
        await pilot.press("ctrl+o")
        listed = await on(pilot, PresetsScreen)
        box = listed.query_one(OptionList)
        await until(pilot, lambda: box.option_count)
        said = "\n".join(str(o.prompt) for o in box.options)
        assert {"default", "single", "ddp", "dp", "multinode"} <= {o.id for o in box.options}
        assert "Several GPUs of one machine" in said
        assert "shipped" in said
        (broken,) = [o for o in box.options if o.disabled]
        assert "there is no such key" in str(broken.prompt)
        box.highlighted = box.get_option_index("dp")
        await pilot.press("enter")
        await until(pilot, lambda: screen.draft.preset.name == "dp")
        await settled(pilot, screen)
        assert screen.query_one("#f-parallel-mode").value == "dp"
        assert screen.form.border_title == "Launch ─ preset dp"


def form(screen):
    """What the person sees of the form."""
    return ({w.id: w.value for w in screen.form.query(".field") if w.id},
            screen.devices.ticked, screen.form.border_title, screen.draft.data)


async def test_loading_another_asks_once_where_changes_would_be_lost():
    async with panel(gpus(3)) as (pilot, screen):
        await pick(pilot, "ddp")  # nothing has changed, nothing is asked
        await until(pilot, lambda: screen.draft.preset.name == "ddp" and screen.devices.ticked)
        await settled(pilot, screen)
        await type_into(pilot, screen, "f-train-lr", "0.005")
        mine = form(screen)
        for answer in ("n", "y"):
            await pick(pilot, "dp")
            await on(pilot, Confirm)
            await pilot.press(answer)
            await until(pilot, lambda: pilot.app.screen is screen)
            if answer == "n":
                assert form(screen) == mine
        await until(pilot, lambda: screen.draft.preset.name == "dp")
        await settled(pilot, screen)
        assert screen.form.border_title == "Launch ─ preset dp"


async def test_one_of_yours_says_how_it_differs_and_can_be_deleted():
    presets.save("single", replace(presets.load("single").spec, name="other"))
    async with panel(gpus(2), "ddp", size=(80, 24)) as (pilot, _):
        await pilot.press("ctrl+o")
        listed = await on(pilot, PresetsScreen)
        box = listed.query_one(OptionList)
        await until(pilot, lambda: box.option_count)
        assert "shipped → yours: name " in str(box.get_option("single").prompt)
        box.highlighted = box.get_option_index("ddp")
        await pilot.press("x")
        await until(pilot, lambda: any("ddp ships with gpu-panel and can't be deleted" in n.message
                                       for n in pilot.app._notifications))
        box.highlighted = box.get_option_index("single")
        await pilot.press("x")
        await on(pilot, Confirm)
        await pilot.press("y")
        await until(pilot, lambda: pilot.app.screen is listed
                    and presets.load("single").shipped and box.option_count
                    and "shipped → yours" not in str(box.get_option("single").prompt))
