"""A machine on which nothing has torch: one key offers it, and another installs it."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import Collapsible, Input, OptionList

from gpu_engine.interpreters import candidates, own_torch
from gpu_engine.interpreters.candidates import Place
from gpu_panel.launch.form.fieldset import Fieldset
from gpu_panel.launch.torch.dialog import TorchScreen

from ...conftest import slots
from ...interpreters.environments import environment, torch_in
from ...interpreters.wheelhouse import wheelhouse
from ..panel_kit import panel, problems_below, screen_text, settled, until

pytestmark = [pytest.mark.own_torch, pytest.mark.timeout(180)]
SETS = ("devices.ids=cpu:0",)


@pytest.fixture(autouse=True)
def bare(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment(tmp_path / "bare")
    there = [Place(str(tmp_path / "bare" / "bin" / "python"), "$VIRTUAL_ENV")]
    monkeypatch.setattr(candidates, "in_order", lambda folder, environ: iter(there))
    monkeypatch.setattr(candidates, "around", lambda folder, environ: there)
    monkeypatch.setattr(own_torch, "_NVIDIA", tmp_path / "none")
    monkeypatch.setattr(own_torch, "_AMD", tmp_path / "none")
    wheelhouse(tmp_path / "wheels", monkeypatch)


@pytest.mark.parametrize("size", [(160, 48), (80, 24), (120, 30)])
async def test_it_is_said_once_and_the_form_opens_at_its_top(size) -> None:
    async with panel(slots(1), "single", sets=SETS, size=size) as (pilot, screen):
        assert screen.review.plan is None
        assert problems_below(screen) == []
        assert screen.query_one(Collapsible).collapsed
        assert screen.query_one(Fieldset).scroll_offset.y == 0
        await pilot.press("3")
        await settled(pilot, screen)
        text = screen_text(pilot.app)
        assert text.count("No interpreter with torch was found") == 1
        assert "T offers to install it" in text
        await pilot.press("2", "escape")
        await until(pilot, lambda: "Get torch  T" in screen_text(pilot.app))


async def test_it_is_installed_and_can_be_launched(home: Path) -> None:
    async with panel(slots(1), "single", sets=SETS) as (pilot, screen):
        await pilot.press("ctrl+l")
        await until(pilot, lambda: isinstance(pilot.app.screen, TorchScreen))
        text = screen_text(pilot.app)
        for words in ("torch 2.13.0 for the processor alone", "0.2 GB to download",
                      "Nothing is installed before you press y"):
            assert words in text
        assert not (home / "torch").exists()
        await pilot.press("y")
        await until(pilot, lambda: "of about 1.0 GB" in screen_text(pilot.app))
        await pilot.press("escape")  # it goes on
        await until(pilot, lambda: screen.review.plan is not None)
        await settled(pilot, screen)
        assert screen.review.plan.processes[0].argv[0] == str(home / "torch" / "bin" / "python")
        assert "Launch  ^l" in screen_text(pilot.app)


async def test_what_goes_wrong_is_shown_and_it_can_be_tried_again(
        home: Path, tmp_path: Path) -> None:
    for wheel in (tmp_path / "wheels").glob("torch*"):
        wheel.rename(tmp_path / wheel.name)
    async with panel(slots(1), "single", sets=SETS) as (pilot, screen):
        await pilot.press("T")
        await until(pilot, lambda: isinstance(pilot.app.screen, TorchScreen))
        await pilot.press("y")
        await until(pilot, lambda: "The installation failed" in screen_text(pilot.app))
        assert "No matching distribution found" in screen_text(pilot.app)
        for wheel in tmp_path.glob("torch*.whl"):
            wheel.rename(tmp_path / "wheels" / wheel.name)
        await pilot.press("y")
        await until(pilot, lambda: not isinstance(pilot.app.screen, TorchScreen))
        await until(pilot, lambda: screen.review.plan is not None)


async def test_it_is_ended_by_a_key_and_with_the_panel(home: Path) -> None:
    async with panel(slots(1), "single", sets=SETS) as (pilot, _):
        await pilot.press("T")
        await until(pilot, lambda: isinstance(pilot.app.screen, TorchScreen))
        await pilot.press("y", "x")
        await until(pilot, lambda: "Nothing was left behind" in screen_text(pilot.app))
        assert not (home / "torch").exists()
        await pilot.press("y")
        await until(pilot, lambda: (home / "torch" / "bin").exists())
    assert not (home / "torch").exists()


async def test_one_that_is_there_is_named(tmp_path: Path, monkeypatch) -> None:
    torch_in(environment(tmp_path / "cuda"))
    python = str(tmp_path / "cuda" / "bin" / "python")
    there = [Place(python, "conda's cuda")]
    monkeypatch.setattr(candidates, "around", lambda folder, environ: there)
    async with panel(slots(1), "single", sets=SETS) as (pilot, screen):
        await pilot.press("T")
        await until(pilot, lambda: isinstance(pilot.app.screen, TorchScreen))
        await pilot.press("c")
        await until(pilot, lambda: isinstance(pilot.app.focused, OptionList) and "enter choose"
                    in str(pilot.app.focused.border_subtitle))
        await pilot.press("down", "enter")
        await settled(pilot, screen)
        await until(pilot, lambda: screen.review.plan is not None)
        assert screen.draft.text("run.python") == python
        assert not screen.query("#f-run-python") \
            or screen.query_one("#f-run-python", Input).value == python
