"""A rank that stands still: who, in which phase, for how long, and where."""

from __future__ import annotations

from pathlib import Path

from .run_kit import (
    SMALL,
    T0,
    WIDE,
    Mini,
    flat,
    settled,
    shown,
    terminal,
    trained,
)


async def test_a_rank_that_stands_still_is_named_with_its_phase(tmp_path: Path) -> None:
    run = trained(tmp_path)
    run.write(1, ("phase", 51, {"phase": "data", "since": T0 + 51, "step": 99}))
    app = Mini(run.run, at=52)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        assert "has stood" not in terminal(app)
        app.at = 171
        await shown(pilot)
        text = flat(terminal(app))
        assert "! rank 1 has stood in data for 02:00 after step 99" in text
        assert "rank 0 in forward; d shows where" in text


async def answered(pilot) -> None:
    asking = [w for w in pilot.app.workers if w.group == "stacks"]
    if asking:  # of an empty list Textual makes all there are
        await pilot.app.workers.wait_for_complete(asking)
    await shown(pilot)


async def test_the_chosen_rank_is_asked_where_it_is(tmp_path: Path, monkeypatch) -> None:
    asked = []
    answers = iter([True, False])
    monkeypatch.setattr("gpu_engine.runs.Run.dump_stacks",
                        lambda self, rank: asked.append(rank) or next(answers))
    run = trained(tmp_path)
    app = Mini(run.run, at=50.5)
    async with app.run_test(size=SMALL) as pilot:
        await settled(pilot)
        await pilot.press("r", "d")
        await answered(pilot)
        assert asked == [1]
        assert "log ─ rank 1" in terminal(app)
        await pilot.press("d")
        await answered(pilot)
        told = [n.message for n in app._notifications]
        assert any("can't be asked" in m for m in told), told
