"""Presets are listed and loaded, and changes are not lost without asking."""

from __future__ import annotations

from dataclasses import replace

import pytest
from textual.widgets import Input, OptionList

from gpu_engine.spec import presets
from gpu_panel.common.dialogs import AskLine, Confirm
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
        await until(pilot, lambda: screen.draft.preset.name == "ddp")
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


@pytest.mark.parametrize("size", [(160, 48), (80, 24)], ids=str)
async def test_they_are_copied_described_and_renamed(size):
    async with panel(gpus(2), "ddp", size=size) as (pilot, screen):
        await pilot.press("ctrl+o")
        listed = await on(pilot, PresetsScreen)
        box = listed.query_one(OptionList)
        await until(pilot, lambda: box.option_count)
        box.highlighted = box.get_option_index("ddp")
        await pilot.press("r")  # a shipped one
        await until(pilot, lambda: any("ddp ships with gpu-panel and can't be renamed" in n.message
                                       for n in pilot.app._notifications))
        await pilot.press("d")
        asking = await on(pilot, AskLine)
        assert asking.query_one(Input).value == "ddp-2"
        await pilot.press("enter")
        await until(pilot, lambda: pilot.app.screen is listed and "ddp-2" in listed._entries)
        await until(pilot, lambda: box.get_option_at_index(box.highlighted or 0).id == "ddp-2")
        await pilot.press("e")
        asking = await on(pilot, AskLine)
        asking.query_one(Input).value = "for the small cards"
        await pilot.press("enter")
        await until(pilot, lambda: pilot.app.screen is listed
                    and "for the small cards" in str(box.get_option("ddp-2").prompt))

        presets.save("single", replace(presets.load("single").spec, name="other"))
        await pilot.press("escape")
        await until(pilot, lambda: pilot.app.screen is screen)
        await pick(pilot, "ddp-2")
        await until(pilot, lambda: screen.draft.preset.name == "ddp-2")
        await settled(pilot, screen)
        await pilot.press("ctrl+o")
        listed = await on(pilot, PresetsScreen)
        box = listed.query_one(OptionList)
        await until(pilot, lambda: box.option_count)
        assert "shipped → yours: name " in str(box.get_option("single").prompt)
        assert "→ other" in str(box.get_option("single").prompt)
        box.highlighted = box.get_option_index("ddp-2")
        await pilot.press("r")
        asking = await on(pilot, AskLine)
        asking.query_one(Input).value = "single"
        await until(pilot, lambda: "you have a preset single already" in str(
            asking.query_one("#name-said").content))
        asking.query_one(Input).value = "small"
        await pilot.press("enter")
        await until(pilot, lambda: pilot.app.screen is listed and "small" in listed._entries)
        await pilot.press("escape")
        await until(pilot, lambda: screen.draft.preset.name == "small")
        await settled(pilot, screen)
        assert screen.form.border_title == "Launch ─ preset small"
        assert presets.load("small").description == "for the small cards"
