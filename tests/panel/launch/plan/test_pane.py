"""The plan pane on the screen."""


from gpu_engine.launching import logind
from gpu_panel.launch.plan import PlanPane

from ....conftest import gpus
from ...panel_kit import panel, press, shown


async def test_warnings_stand_before_the_ranks(monkeypatch):
    told = "the run ends then too: loginctl enable-linger"
    monkeypatch.setattr(logind, "here", lambda: told)
    async with panel(gpus(2), size=(80, 24)) as (pilot, screen):
        await press(pilot, screen, "3")
        preview = screen.query_one(PlanPane)
        assert preview.border_title == "What will run ─ preset default ─ ! 1 warning"
        said = " ".join(shown(screen.query_one("#plan-text")).split())
        assert said.index("loginctl enable-linger") < said.index("rank 0")
