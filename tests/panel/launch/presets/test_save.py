"""Presets are saved under a name: comments are kept, replacing one that ships is announced, and an
invalid name stays in its field."""

from __future__ import annotations

import pytest
from textual.widgets import Input, OptionList, Static

from gpu_engine.spec import presets
from gpu_panel.common.dialogs import AskLine, Confirm, Message
from gpu_panel.launch.presets import PresetsScreen

from ....conftest import gpus, slots
from ...panel_kit import panel, settled, type_into, until

pytestmark = pytest.mark.usefixtures("home")


async def on(pilot, kind):
    await until(pilot, lambda: isinstance(pilot.app.screen, kind))
    await pilot.pause()
    return pilot.app.screen


def said(pilot) -> str:
    """The text of the dialog on top."""
    texts = [str(s.content) for s in pilot.app.screen.query(Static) if s.display]
    return " ".join(" ".join(texts).split())


@pytest.mark.parametrize("size", [(160, 48), (80, 24)])
async def test_a_shipped_one_is_not_hidden_unseen(size):
    async with panel(slots(1), "single", size=size) as (pilot, screen):
        await pilot.press("ctrl+s")
        await on(pilot, AskLine)
        assert "single ships with gpu-panel. Yours will be used instead" in said(pilot)
        await pilot.press("enter")
        await on(pilot, Confirm)
        assert not (presets.own_folder() / "single.toml").exists()
        await pilot.press("n")  # "Another name" keeps the name that was typed
        asking = await on(pilot, AskLine)
        assert asking.query_one(Input).value == "single"
        await pilot.press("enter")
        await on(pilot, Confirm)
        await pilot.press("y")
        await until(pilot, lambda: (presets.own_folder() / "single.toml").exists())
        await settled(pilot, screen)

        await pilot.press("ctrl+o")
        listed = await on(pilot, PresetsScreen)
        box = listed.query_one(OptionList)
        await until(pilot, lambda: box.option_count)
        assert "your own, used instead of the shipped one" in str(
            box.get_option("single").prompt)
        box.highlighted = box.get_option_index("ddp")
        await pilot.press("x")
        await until(pilot, lambda: any("ddp ships with gpu-panel and can't be deleted" in n.message
                                       for n in pilot.app._notifications))
        assert pilot.app.screen is listed
        box.highlighted = box.get_option_index("single")
        await pilot.press("x")
        await on(pilot, Confirm)
        assert "the single that ships with gpu-panel is used again" in said(pilot)
        await pilot.press("y")
        await until(pilot, lambda: pilot.app.screen is listed and box.option_count
                    and "in place of" not in str(box.get_option("single").prompt))
        assert presets.load("single").shipped
        await pilot.press("escape")
        await until(pilot, lambda: pilot.app.screen is screen)
        await until(pilot, lambda: screen.draft.preset is None)
        await settled(pilot, screen)
        assert "gpu-engine run --set" in screen.review.plan.lines[0]  # without the deleted one


async def test_a_name_that_will_not_do_stays_and_a_form_that_does_not_parse_is_not_saved():
    async with panel(slots(1), "single") as (pilot, screen):
        await pilot.press("ctrl+s")
        asking = await on(pilot, AskLine)
        asking.query_one(Input).value = "../evil"
        await pilot.press("enter")
        await pilot.pause()
        assert pilot.app.screen is asking
        assert "can't be a preset's name" in str(asking.query_one("#name-said").content)
        assert screen.draft.preset.name == "single"
        asking.query_one(Input).value = "my preset"
        await until(pilot, lambda: "'my preset' can't be a preset's name: use" in said(pilot))
        await pilot.press("enter")
        await pilot.pause()
        assert pilot.app.screen is asking
        assert asking.query_one(Input).value == "my preset"
        asking.query_one(Input).value = "my-preset"
        await until(pilot, lambda: "can't be a preset's name" not in said(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: (presets.own_folder() / "my-preset.toml").exists())
        assert pilot.app.screen is screen

        await settled(pilot, screen)
        await type_into(pilot, screen, "f-batch-size", "many")
        await pilot.press("ctrl+s")
        told = await on(pilot, Message)
        assert "batch.size" in str(told.query_one(".dialog-text > Static").content)


async def test_saving_keeps_comments_and_names_cards_by_uuid():
    machine = gpus(3)
    async with panel(machine) as (pilot, screen):
        await pilot.press("space")
        await type_into(pilot, screen, "f-train-lr", "5e-3")
        await pilot.press("ctrl+s")
        asking = await on(pilot, AskLine)
        asking.query_one(Input).value = "mine"
        await pilot.press("tab", *"cards", "enter")
        await until(pilot, lambda: screen.draft.preset.name == "mine")
        await settled(pilot, screen)
        saved = presets.load("mine")
        assert saved.spec.devices.ids == [machine.devices[1].uuid]
        assert saved.spec.train.lr == 5e-3
        assert saved.description == "cards"
        assert screen.form.border_title == "Launch ─ preset mine"
        saved.path.write_text("# why this one\n" + saved.path.read_text())
        await type_into(pilot, screen, "f-train-lr", "6e-3")
        await pilot.press("ctrl+s")
        await on(pilot, AskLine)
        await pilot.press("enter")
        await on(pilot, Confirm)
        await pilot.press("y")
        await until(pilot, lambda: presets.load("mine").spec.train.lr == 6e-3)
        assert saved.path.read_text().startswith("# why this one")
        assert presets.load("mine").description == "cards"
    async with panel(machine, "mine") as (_, screen):
        assert screen.draft.ids == ["1"]
        assert not screen.draft.changed
