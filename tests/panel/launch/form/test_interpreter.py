"""The interpreter in the form: the one that is found, none at all, and the list to choose from."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from textual.widgets import Input, OptionList

from gpu_engine.interpreters import candidates
from gpu_engine.interpreters.candidates import Place
from gpu_panel.launch.interpreters import InterpreterLine, InterpretersScreen

from ....conftest import slots
from ....interpreters.environments import environment, torch_in
from ...panel_kit import panel, problems_below, screen_text, settled, until

pytestmark = [pytest.mark.usefixtures("home"), pytest.mark.own_torch]


async def test_none_has_torch_and_one_is_chosen_from_the_list(tmp_path: Path, monkeypatch) -> None:
    """By keys, then by mouse, on the smallest screen."""
    environment(tmp_path / "bare")
    torch_in(environment(tmp_path / "cuda"))
    paths = {name: str(tmp_path / name / "bin" / "python") for name in ("bare", "cuda")}
    there = [Place(paths["bare"], "$VIRTUAL_ENV"), Place(paths["cuda"], "conda's cuda"),
             Place("/other/.venv/bin/python", "the .venv of /other", stranger=True)]
    monkeypatch.setattr(candidates, "in_order", lambda folder, environ: iter(there[:1]))
    monkeypatch.setattr(candidates, "around", lambda folder, environ: there)
    async with panel(slots(1), "single", sets=("devices.ids=cpu:0",), size=(80, 24)) as (
            pilot, screen):
        assert screen.review.plan is None
        [problem] = problems_below(screen)
        assert "pip install torch" in problem
        await pilot.press("2")
        line = screen.query_one(InterpreterLine)
        await until(pilot, lambda: "choose another" in str(line.render()))
        line.focus()
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, InterpretersScreen)
                    and "enter choose" in str(pilot.app.screen.query_one(OptionList)
                                              .border_subtitle))
        shown = screen_text(pilot.app)
        python = "Python " + ".".join(map(str, sys.version_info[:3]))
        for words in (f"{python}, no torch · $VIRTUAL_ENV",
                      f"{python}, torch 2.13.0+cu130 for CUDA 13.0 · conda's cuda",
                      "belongs to another user"):
            assert words in shown
        await pilot.press("down", "down", "enter")
        await settled(pilot, screen)
        field = screen.query_one("#f-run-python", Input)
        assert field.value == paths["cuda"]
        assert problems_below(screen) == []
        assert screen.review.plan.processes[0].argv[0] == paths["cuda"]
        assert "torch 2.13.0+cu130 for CUDA 13.0 · Python" in str(line.render())
        line.scroll_visible(animate=False)
        await pilot.pause()
        await pilot.click(InterpreterLine)
        await until(pilot, lambda: isinstance(pilot.app.screen, InterpretersScreen)
                    and pilot.app.screen.query_one(OptionList).highlighted == 2)
        monkeypatch.setattr(candidates, "in_order", lambda folder, environ: iter(there[1:2]))
        await pilot.click(OptionList, offset=(4, 1))  # found for each run
        await settled(pilot, screen)
        assert (field.value, field.placeholder) == ("", paths["cuda"])
        assert problems_below(screen) == []
        assert screen.review.plan.interpreter.why == "conda's cuda"
