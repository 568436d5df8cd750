"""The interpreter in the form: none that has torch, one that is typed, one that is found."""


import pytest
from textual.widgets import Input

from gpu_engine.interpreters import choose
from gpu_engine.interpreters.choose import Place

from ....conftest import slots
from ....interpreters.environments import environment, torch_in
from ...panel_kit import panel, problems_below, settled, type_into

pytestmark = pytest.mark.own_torch


async def test_none_has_torch_one_is_typed_and_one_is_found(tmp_path, monkeypatch):
    environment(tmp_path / "bare")
    torch_in(environment(tmp_path / "cuda"))
    paths = {name: str(tmp_path / name / "bin" / "python") for name in ("bare", "cuda")}
    bare, cuda = Place(paths["bare"], "$VIRTUAL_ENV"), Place(paths["cuda"], "conda's cuda")
    monkeypatch.setattr(choose, "in_order", lambda folder, environ: iter([bare]))
    async with panel(slots(1), "single", sets=("devices.ids=cpu:0",)) as (pilot, screen):
        assert screen.review.plan is None
        [problem] = problems_below(screen)
        assert "pip install torch" in problem
        await type_into(pilot, screen, "f-run-python", paths["cuda"])
        assert problems_below(screen) == []
        assert screen.review.plan.processes[0].argv[0] == paths["cuda"]
        monkeypatch.setattr(choose, "in_order", lambda folder, environ: iter([cuda]))
        await type_into(pilot, screen, "f-run-python", "")
        await settled(pilot, screen)
        empty = screen.query_one("#f-run-python", Input).placeholder
        assert empty.startswith(f"{paths['cuda']}: Python 3")
        assert empty.endswith("torch 2.13.0+cu130 for CUDA 13.0 (conda's cuda)")
        assert screen.review.plan.interpreter.why == "conda's cuda"
