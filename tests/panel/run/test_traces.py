"""T traces the next steps of a live run, and says where the traces are."""


from gpu_engine.common.errors import UserError
from gpu_engine.events.schema import Trace

from ..run_kit import flat, screen_text, shown, trained, watched, worked


async def pressed(pilot):
    await pilot.press("T")
    await worked(pilot, "trace")
    await shown(pilot)


async def test_a_sheet_says_where_the_traces_are(tmp_path, monkeypatch):
    run = trained(tmp_path)
    monkeypatch.setattr("gpu_engine.diagnose.traces.trace", lambda run: {
        0: Trace(5, 1, "[red]t.json.gz"), 1: Trace(5, 1, problem="no room"), 2: None})
    async with watched(run, at=52) as (pilot, app):
        await pressed(pilot)
        text = flat(screen_text(app))
        assert "Traces of run 3f2a" in text
        assert "[red]t.json.gz" in text
        assert "no trace: no room" in text
        assert "it made no step in that time" in text
        await pilot.press("escape")
        await shown(pilot)
        assert "Traces of run" not in screen_text(app)


async def test_why_there_is_none_is_told(tmp_path, monkeypatch):
    def refused(run):
        raise UserError("the ranks are on other machines")

    monkeypatch.setattr("gpu_engine.diagnose.traces.trace", refused)
    async with watched(trained(tmp_path), at=52) as (pilot, app):
        await pressed(pilot)
        assert "the ranks are on other machines" in flat(screen_text(app))
