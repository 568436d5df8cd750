"""Presets are chosen by a part of their name and saved under one; what is unsaved is asked about
once."""

from textual.command import CommandPalette
from textual.events import Key
from textual.widgets import Input, OptionList

from gpu_engine.spec import presets
from gpu_panel.common.dialogs import AskLine, Confirm, Message

from ...conftest import gpus
from ..panel_kit import _met, on_top, panel, says, screen_text, settled, type_into, until


async def load(pilot, name):
    await pilot.press("ctrl+o")
    await on_top(pilot, CommandPalette, "default")
    await pilot.press(*name)
    found = pilot.app.screen.query_one(OptionList)
    await until(pilot, lambda: found.option_count
                and str(found.get_option_at_index(0).prompt).startswith(f"{name}\n"))
    await pilot.press("enter")


async def test_another_is_loaded_and_what_is_unsaved_is_asked_about_once():
    presets.own_folder().mkdir(parents=True)
    (presets.own_folder() / "bad.toml").write_text("[bold]\nx = 1\n")
    async with panel(gpus(3)) as (pilot, screen):
        await load(pilot, "bad")
        await on_top(pilot, Message, "there is no such key")
        await pilot.press("escape")
        await load(pilot, "ddp")  # nothing has changed, nothing is asked
        await until(pilot, lambda: screen.form.border_title == "Launch ─ preset ddp")
        await settled(pilot, screen)
        await type_into(pilot, screen, "f-train-lr", "0.005")
        for answer, mine in (("n", "0.005"), ("y", "0.001")):
            await load(pilot, "dp")
            await on_top(pilot, Confirm)
            await pilot.press(answer)
            await on_top(pilot, screen)
            await settled(pilot, screen)
            assert screen.query_one("#f-train-lr", Input).value == mine
        assert screen.query_one("#f-parallel-mode").value == "dp"
        await type_into(pilot, screen, "f-train-lr", "0.5")
        await pilot.press("ctrl+q")
        await on_top(pilot, Confirm, "are lost: n")
        await pilot.press("n")
        await on_top(pilot, screen)
        pilot.app.post_message(Key("ctrl+q", None))  # is not asked again
        await _met(pilot, lambda: pilot.app._exit)


async def test_saving_keeps_comments_names_cards_by_uuid_and_says_what_it_replaces():
    machine = gpus(3)
    async with panel(machine, "single") as (pilot, screen):
        await pilot.press("down", "space")
        await type_into(pilot, screen, "f-train-lr", "5e-3")
        await pilot.press("ctrl+s")
        await on_top(pilot, AskLine, "single ships with gpu-panel. Yours")
        box = pilot.app.screen.query_one(Input)
        for wrong in ("../evil", "my preset"):
            box.value = wrong
            await says(pilot, "can't be a preset's name")
            await pilot.press("enter")
            assert isinstance(pilot.app.screen, AskLine)
        box.value = "mine"
        await pilot.press("enter")
        await until(pilot, lambda: screen.draft.preset.name == "mine")
        await settled(pilot, screen)
        saved = presets.load("mine")
        assert saved.spec.devices.ids == [d.uuid for d in machine.devices[:2]]
        assert saved.spec.train.lr == 5e-3
        assert screen.form.border_title == "Launch ─ preset mine"
        saved.path.write_text("# why this one\n" + saved.path.read_text())
        await type_into(pilot, screen, "f-train-lr", "6e-3")
        await pilot.press("ctrl+s")
        await until(pilot, lambda: "mine.toml already exists" in " ".join(
            screen_text(pilot.app).replace("│", "").split()))
        await pilot.press("enter")
        await until(pilot, lambda: presets.load("mine").spec.train.lr == 6e-3)
        assert saved.path.read_text().startswith("# why this one")
        await settled(pilot, screen)
        await type_into(pilot, screen, "f-batch-size", "many")
        await pilot.press("ctrl+s")
        await on_top(pilot, Message, "batch.size")
    async with panel(machine, "mine") as (_, screen):
        assert screen.draft.ids == ["0", "1"]
        assert not screen.draft.changed
