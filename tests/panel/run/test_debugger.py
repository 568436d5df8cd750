"""A rank with a terminal on the run screen: how to get there, and that it holds up the others."""

from __future__ import annotations

from pathlib import Path

from gpu_panel.commands import terminal as given

from ..run_kit import T0, WIDE, Mini, flat, settled, shown, terminal, trained

DEBUGGED = {"spec": {"run": {"debug_rank": 1}}}


async def test_a_rank_in_the_debugger_is_named_and_nobody_stalls(tmp_path: Path) -> None:
    run = trained(tmp_path, plan=DEBUGGED, reason="rank 1 has a terminal: gpu-engine attach 3f2a")
    app = Mini(run.run, at=50.5)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        assert "rank 1 has a terminal: gpu-engine attach 3f2a, or D" in flat(terminal(app))
        run.write(1, ("debugger", 51, {"place": "train.py:31 in main"}))
        for rank in (0, 1):
            run.write(rank, ("phase", 400, {"phase": "forward", "since": T0 + 50, "step": 99}))
        app.at = 401
        await settled(pilot, lambda store: store.ranks[1].debugged
                      and store.ranks[0].beat > T0 + 399)
        text = flat(terminal(app))
        assert "rank 1 waits in the debugger since 05:50, at train.py:31 in main" in text
        assert "D goes there, as gpu-engine attach 3f2a does" in text
        assert "stalled" not in text
        run.write(1, ("debugger", 401, {"place": None}))
        app.at = 410
        await settled(pilot, lambda store: not store.ranks[1].debugged)
        assert "waits in the debugger" not in flat(terminal(app))
        assert "no step" not in flat(terminal(app)), "time in the debugger is no standstill"


async def test_d_gives_it_this_terminal(tmp_path: Path, monkeypatch) -> None:
    opened = []
    monkeypatch.setattr(given, "in_terminal", lambda app, argv: opened.append(argv) or 2)
    run = trained(tmp_path, plan=DEBUGGED)
    app = Mini(run.run, at=50.5)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        await pilot.press("D")
        await shown(pilot)
        assert [argv[-3:] for argv in opened] == [["gpu_engine", "attach", "3f2a"]]
        assert any("says why" in n.message for n in app._notifications)


async def test_without_a_terminal_d_says_so(tmp_path: Path) -> None:
    app = Mini(trained(tmp_path).run, at=50.5)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        screen = app.run_screen
        assert screen.check_action("attach", ()) is None
        assert "run.debug_rank" in screen.why_off("attach", ())
