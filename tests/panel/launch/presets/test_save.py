"""Names of presets: one that ships is not hidden unseen, one's own can be deleted, and a name that
won't do stays to be mended."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from textual.widgets import Input, OptionList, Static

from gpu_engine.common.errors import UserError
from gpu_engine.spec import presets
from gpu_panel.common.dialogs import AskName, Confirm
from gpu_panel.launch.presets.dialog import PresetsScreen

from ....conftest import slots
from ...panel_kit import panel, settled, until

pytestmark = pytest.mark.usefixtures("home")


async def on(pilot, kind):
    await until(pilot, lambda: isinstance(pilot.app.screen, kind))
    await pilot.pause()
    return pilot.app.screen


def said(pilot) -> str:
    """What the dialog on top says."""
    texts = [str(s.content) for s in pilot.app.screen.query(Static) if s.display]
    return " ".join(" ".join(texts).split())


@pytest.mark.parametrize("size", [(160, 48), (80, 24)])
async def test_a_shipped_one_is_not_hidden_unseen(size):
    async with panel(slots(1), "single", size=size) as (pilot, screen):
        await pilot.press("ctrl+s")
        await on(pilot, AskName)
        assert "single ships with gpu-panel. Yours will stand in its place" in said(pilot)
        await pilot.press("enter")
        await on(pilot, Confirm)
        assert not (presets.own_folder() / "single.toml").exists()
        await pilot.press("n")  # another name: the one that was typed stands there
        asking = await on(pilot, AskName)
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
        assert "your own, in place of the shipped one" in str(
            box.get_option("single").prompt)
        box.highlighted = box.get_option_index("ddp")
        await pilot.press("x")
        await until(pilot, lambda: any("ddp ships with gpu-panel and stays" in n.message
                                       for n in pilot.app._notifications))
        assert pilot.app.screen is listed
        box.highlighted = box.get_option_index("single")
        await pilot.press("x")
        await on(pilot, Confirm)
        assert "The single that ships is in its place again then" in said(pilot)
        await pilot.press("y")
        await until(pilot, lambda: pilot.app.screen is listed and box.option_count
                    and "in place of" not in str(box.get_option("single").prompt))
        assert presets.load("single").shipped
        await pilot.press("escape")
        await until(pilot, lambda: pilot.app.screen is screen)
        await until(pilot, lambda: screen.draft.preset is None)
        await settled(pilot, screen)
        assert "gpu-engine run --set" in screen.review.plan.lines[0]  # builds on nothing deleted


async def test_a_name_that_will_not_do_stays():
    async with panel(slots(1), "single") as (pilot, screen):
        await pilot.press("ctrl+s")
        asking = await on(pilot, AskName)
        asking.query_one(Input).value = "my preset"
        await until(pilot, lambda: "'my preset' can't be a preset's name: letters" in said(pilot))
        await pilot.press("enter")
        await pilot.pause()
        assert pilot.app.screen is asking
        assert asking.query_one(Input).value == "my preset"
        asking.query_one(Input).value = "my-preset"
        await until(pilot, lambda: "can't be a preset's name" not in said(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: (presets.own_folder() / "my-preset.toml").exists())
        assert pilot.app.screen is screen


def engine(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "gpu_engine", "presets", *args],
                          capture_output=True, text=True, timeout=150, check=False)


def test_the_command_line_deletes_ones_own():
    presets.save("ddp", presets.load("ddp").spec)
    assert "ddp.toml  (in place of the shipped one)" in engine().stdout
    gone = engine("ddp", "--delete")
    assert gone.returncode == 0
    assert "ddp.toml deleted; the one that ships is in its place again" in gone.stdout
    assert presets.load("ddp").shipped
    again = engine("ddp", "--delete")
    assert again.returncode == 2
    assert "ddp ships with gpu-panel and stays" in again.stderr
    assert "you have no preset 'nope'" in engine("nope", "--delete").stderr
    assert engine("--delete").returncode == 2


def test_broken_ones_can_be_deleted_and_a_fifo_is_not_waited_for():
    folder = presets.own_folder()
    folder.mkdir(parents=True)
    (folder / "bad.toml").write_text("[")
    os.mkfifo(folder / "pipe.toml")
    listed = engine()
    assert listed.returncode == 0
    assert "it is a FIFO, not a file" in listed.stdout
    for name in ("bad", "pipe"):
        assert engine(name, "--delete").returncode == 0
    assert list(folder.iterdir()) == []
    for name in ("../x", "", "/etc/passwd"):
        with pytest.raises(UserError):
            presets.remove(name)
