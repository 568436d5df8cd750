"""What the form has below "more", and the warnings beside the plan."""

from __future__ import annotations

from dataclasses import fields

import pytest
from textual.widgets import Collapsible

from gpu_engine.launch import logind
from gpu_engine.launch.logind import Decision
from gpu_engine.spec.schema import SECTIONS
from gpu_panel.launch.form.fields import FIELDS
from gpu_panel.launch.plan.pane import PlanPane

from ..conftest import gpus
from .panel_kit import panel, settled, shown, type_into

pytestmark = pytest.mark.usefixtures("home")

ELSEWHERE = {
    "task.params", "devices.ids", "devices.pick", "devices.share",  # ticks, and Launch asks
    "train.epochs", "train.steps",  # one field for both
    "parallel.backend", "parallel.launcher", "parallel.bucket_cap_mb", "parallel.static_graph",
}
"""Keys without a field of their own: shown in another way, or a preset's matter."""


def test_every_key_has_a_field_or_is_known_to_have_none():
    keys = {f"{name}.{key}" for name, section in SECTIONS.items()
            for key in (f.name for f in fields(section))}
    assert keys - set(FIELDS) == ELSEWHERE


async def test_what_is_typed_there_is_planned():
    async with panel(gpus(2)) as (pilot, screen):
        screen.query_one("#more", Collapsible).collapsed = False
        await type_into(pilot, screen, "f-train-hang_timeout", "900")
        await type_into(pilot, screen, "f-run-log_mb", "8")
        choice = screen.query_one("#f-parallel-find_unused")
        assert choice.display
        choice.choose("true")
        await settled(pilot, screen)
        spec = screen.review.prepared.spec
        assert (spec.train.hang_timeout, spec.run.log_mb, spec.parallel.find_unused) \
            == (900.0, 8, True)
        for said in ("train.hang_timeout=900", "run.log_mb=8", "parallel.find_unused=true"):
            assert said in screen.review.plan.lines[0]
        await type_into(pilot, screen, "f-train-hang_timeout", "-1")
        assert [p.key for p in screen.review.problems] == ["train.hang_timeout"]
        screen.form.query_one("#f-parallel-mode").choose("single")
        await settled(pilot, screen)
        assert not choice.display  # one rank has nobody to wait for


async def test_warnings_stand_before_the_ranks(monkeypatch: pytest.MonkeyPatch):
    told = Decision(warning="the run ends then too: loginctl enable-linger")
    monkeypatch.setattr(logind, "here", lambda: told)
    async with panel(gpus(2), size=(80, 24)) as (pilot, screen):
        await pilot.press("3")
        await settled(pilot, screen)
        preview = screen.query_one(PlanPane)
        assert preview.border_title == "What will run ─ ! 1 warning"
        said = " ".join(shown(screen.query_one("#plan-text")).split())
        assert said.index("loginctl enable-linger") < said.index("rank 0")
