"""The form comes back with its unsaved changes, leaving it is asked once, and nothing is lost."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from textual.events import Key
from textual.widgets import Input

from gpu_engine.spec import presets
from gpu_engine.spec.read import from_dict
from gpu_engine.spec.write import to_dict
from gpu_panel.common.dialogs import Confirm, Message
from gpu_panel.launch import saved_form
from gpu_panel.launch.draft import Draft
from gpu_panel.launch.saved_form import first_draft

from ...conftest import gpus
from ..panel_kit import _met, panel, screen_text, settled, type_into, until

pytestmark = pytest.mark.usefixtures("home")


def keep(draft: Draft) -> None:
    saved_form.write(saved_form.written(draft, None))


def edited(preset: str = "ddp", **put: str) -> Draft:
    draft = Draft(presets.load(preset))
    for key, text in put.items():
        draft.put(key.replace("__", "."), text)
    return draft


async def closing(pilot, *keys: str) -> None:
    """Press keys that end the app. The pilot's own `press` would wait for the widgets."""
    for key in keys:
        pilot.app.post_message(Key(key, None))
    await _met(pilot, lambda: pilot.app._exit)


async def test_leaving_is_asked_once_and_the_form_comes_back(home):
    machine = gpus(3)
    async with panel(machine, "ddp") as (pilot, screen):
        await type_into(pilot, screen, "f-batch-size", "many")  # not even a number
        await type_into(pilot, screen, "f-train-lr", "0.5")
        await pilot.press("escape", "space")  # untick GPU 0
        await settled(pilot, screen)
        await pilot.press("ctrl+q")
        await until(pilot, lambda: isinstance(pilot.app.screen, Confirm)
                    and "Your changes to preset ddp" in screen_text(pilot.app))
        await pilot.press("n")
        await until(pilot, lambda: pilot.app.screen is screen)
        await closing(pilot, "ctrl+q")
    assert json.loads(saved_form.path().read_text())["devices"]["ids"] == [
        machine.devices[1].uuid]

    moved = replace(machine, devices=machine.devices[:2])
    async with panel(moved) as (pilot, screen):
        assert screen.draft.preset.name == "ddp"
        assert screen.form.border_title == "Launch ─ preset ddp (changed)"
        assert screen.query_one("#f-batch-size", Input).value == "many"
        assert screen.query_one("#f-train-lr", Input).value == "0.5"
        assert screen.draft.ids == ["1"]
        assert [p.key for p in screen.review.problems] == ["batch.size"]
        assert not screen.draft.should_ask  # the same changes are not asked about again
        await type_into(pilot, screen, "f-batch-size", "8")
        assert screen.draft.should_ask
        await closing(pilot, "ctrl+q", "ctrl+q")
    async with panel(moved) as (_, screen):
        assert screen.query_one("#f-batch-size", Input).value == "8"
        assert screen.review.prepared.spec.train.lr == 0.5


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\x00", b'{"version": 1}',
                                     b'{"version": 2, "texts": {"train.lr": 5}}',
                                     b'{"version": 2, "texts": 3, "preset": []}',
                                     b"[" * 100_000])
def test_a_damaged_file_is_put_aside_with_a_note(home, content):
    home.mkdir(exist_ok=True)
    saved_form.path().write_bytes(content)
    draft, said = first_draft(None, (), None)
    assert (draft.preset.name, draft.changed) == ("default", False)
    assert "The saved form can't be read" in str(said)
    assert str(home / "form-damaged.json") in str(said)
    assert (home / "form-damaged.json").read_bytes() == content
    assert first_draft(None, (), None)[1] is None


async def test_what_no_longer_fits_is_told_and_shown(home):
    draft = edited(batch__size="48")
    form = saved_form.written(draft, None)
    form["texts"] |= {"train.turbo": "3", "odd": "x", "train.keep": "1"}  # no longer allowed
    saved_form.write(form)
    async with panel(gpus(2), ready=False) as (pilot, screen):
        await until(pilot, lambda: isinstance(pilot.app.screen, Message))
        said = str(pilot.app.screen.query_one(".dialog-text > Static").content)
        assert 'does not know: train.turbo = 3, odd = x' in said
        await pilot.press("escape")
        await until(pilot, lambda: screen.review is not None)
        await settled(pilot, screen)
        assert "train.keep" in [p.key for p in screen.review.problems]
        assert screen.query_one("#f-batch-size", Input).value == "48"
    assert json.loads((home / "form-unknown.json").read_text()) == form


def test_presets_runs_and_commands_come_back():
    keep(edited("dp"))
    draft, said = first_draft(None, (), None)
    assert (draft.preset.name, draft.changed, said) == ("dp", False, None)

    presets.save("mine", from_dict({"batch": {"size": 8}}))
    keep(edited("mine", batch__size="9"))
    presets.remove("mine")
    draft, said = first_draft(None, (), None)
    assert (draft.preset, draft.value("batch.size")) == (None, 9)
    assert "there is no preset 'mine'" in str(said)

    run = Draft.of_run("3f2a", to_dict(from_dict({"name": "seven", "train": {"steps": 9}})))
    run.put("train.steps", "10")
    keep(run)
    draft, said = first_draft(None, (), None)
    assert (draft.title, said) == ("run 3f2a (changed)", None)
    assert [(d.key, d.before, d.after) for d in draft.differences()] == [("train.steps", "9", "10")]

    keep(Draft.of_command(["python", "train.py"]))
    draft, _ = first_draft(None, (), None)
    assert draft.data["task"]["command"] == ["python", "train.py"]
    assert not draft.changed
    asked_for, _ = first_draft("single", (), None)
    assert asked_for.preset.name == "single"


def test_two_devices_keys_of_one_command_line_are_refused_as_by_the_engine():
    draft, said = first_draft("default", ("devices.hosts=gpu1:0", "devices.pick=2"), None)
    assert "give this or devices.hosts, not both" in str(said)
    assert draft.spec() == presets.load("default").spec
