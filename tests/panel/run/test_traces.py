"""T traces the next steps of a live run, and shows what takes the time."""

from __future__ import annotations

from pathlib import Path

from gpu_engine.common.errors import UserError
from gpu_engine.events.schema import Trace

from ...diagnose.test_traces import written
from ..run_kit import WIDE, Mini, flat, settled, shown, terminal, trained, worked


async def pressed(pilot) -> None:
    await pilot.press("T")
    await worked(pilot, "trace")
    await shown(pilot)


async def test_a_sheet_says_what_takes_the_time(tmp_path: Path, monkeypatch) -> None:
    run = trained(tmp_path)
    written(run.run.path, ("user_annotation", "ProfilerStep#1", 1, 0, 1000),
            ("cpu_op", "aten::[red]mm", 1, 0, 100))
    monkeypatch.setattr("gpu_engine.diagnose.traces.trace", lambda run: {
        0: Trace(5, 1, "t.json.gz"), 1: Trace(5, 1, problem="no room"), 2: None})
    app = Mini(run.run, at=52)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        await pressed(pilot)
        text = flat(terminal(app))
        assert "Traces of run 3f2a" in text
        assert "1 step in 1.00 ms" in text
        assert "aten::[red]mm" in text
        assert "no trace: no room" in text
        assert "it made no step in that time" in text
        await pilot.press("escape")
        await shown(pilot)
        assert "Traces of run" not in terminal(app)


async def test_why_there_is_none_is_told(tmp_path: Path, monkeypatch) -> None:
    def refused(run) -> None:
        raise UserError("the ranks are on other machines")

    monkeypatch.setattr("gpu_engine.diagnose.traces.trace", refused)
    app = Mini(trained(tmp_path).run, at=52)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        await pressed(pilot)
        assert "the ranks are on other machines" in flat(terminal(app))
