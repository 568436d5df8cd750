"""Presets are chosen by a part of their name and saved under one; what is unsaved is asked about
once."""

from __future__ import annotations

from textual.command import CommandPalette
from textual.events import Key
from textual.widgets import Input, OptionList

from gpu_engine.spec import presets
from gpu_panel.common.dialogs import AskLine, Confirm, Message

from ...conftest import gpus
from ..panel_kit import _met, panel, screen_text, settled, type_into, until


async def load(pilot, name):
    await pilot.press("ctrl+o")
    await until(pilot, lambda: isinstance(pilot.app.screen, CommandPalette)
                and "default" in screen_text(pilot.app))
    await pilot.press(*name)
    found = pilot.app.screen.query_one(OptionList)
    await until(pilot, lambda: found.option_count
                and str(found.get_option_at_index(0).prompt).startswith(f"{name}\n"))
    await pilot.press("enter")


async def test_another_is_loaded_and_what_is_unsaved_is_asked_about_once(home):
    presets.own_folder().mkdir(parents=True)
    (presets.own_folder() / "bad.toml").write_text("[bold]\nx = 1\n")
    async with panel(gpus(3)) as (pilot, screen):
        await load(pilot, "bad")
        await until(pilot, lambda: isinstance(pilot.app.screen, Message)
                    and "there is no such key" in screen_text(pilot.app))
        await pilot.press("escape")
        await load(pilot, "ddp")  # nothing has changed, nothing is asked
        await until(pilot, lambda: screen.form.border_title == "Launch ─ preset ddp")
        await settled(pilot, screen)
        await type_into(pilot, screen, "f-train-lr", "0.005")
        for answer, mine in (("n", "0.005"), ("y", "0.001")):
            await load(pilot, "dp")
            await until(pilot, lambda: isinstance(pilot.app.screen, Confirm))
            await pilot.press(answer)
            await until(pilot, lambda: pilot.app.screen is screen)
            await settled(pilot, screen)
            assert screen.query_one("#f-train-lr", Input).value == mine
        assert screen.query_one("#f-parallel-mode").value == "dp"
        await type_into(pilot, screen, "f-train-lr", "0.5")
        await pilot.press("ctrl+q")
        await until(pilot, lambda: isinstance(pilot.app.screen, Confirm)
                    and "are lost: n" in screen_text(pilot.app))
        await pilot.press("n")
        await until(pilot, lambda: pilot.app.screen is screen)
        pilot.app.post_message(Key("ctrl+q", None))  # is not asked again
        await _met(pilot, lambda: pilot.app._exit)


async def test_saving_keeps_comments_names_cards_by_uuid_and_says_what_it_replaces(home):
    machine = gpus(3)
    async with panel(machine, "single") as (pilot, screen):
        await pilot.press("down", "space")
        await type_into(pilot, screen, "f-train-lr", "5e-3")
        await pilot.press("ctrl+s")
        await until(pilot, lambda: isinstance(pilot.app.screen, AskLine)
                    and "single ships with gpu-panel. Yours" in screen_text(pilot.app))
        box = pilot.app.screen.query_one(Input)
        for wrong in ("../evil", "my preset"):
            box.value = wrong
            await until(pilot, lambda: "can't be a preset's name" in screen_text(pilot.app))
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
        await until(pilot, lambda: isinstance(pilot.app.screen, Message)
                    and "batch.size" in screen_text(pilot.app))
    async with panel(machine, "mine") as (_, screen):
        assert screen.draft.ids == ["0", "1"]
        assert not screen.draft.changed
