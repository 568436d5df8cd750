"""A rank with a terminal on the run screen: how to get there, and that it holds up the others."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from gpu_engine.launching.launcher import launch
from gpu_engine.spec.read import from_dict
from gpu_panel.commands import terminal as given

from ...attached import Attached
from ...conftest import patience, slots
from ..run_kit import T0, WIDE, Mini, flat, settled, shown, terminal, trained
from ..terminal.kit import Emulator


class OnScreen(Attached):
    """Looks at the terminal as it looks to a person."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.emulator = Emulator((160, 48))

    def sees(self, text: str) -> str:
        emulator = self.emulator
        end = time.monotonic() + patience()
        while text not in emulator.text():
            emulator.feed(self.reads(text))
            assert time.monotonic() < end, emulator.text()
        return text

    def types(self, text: str) -> None:
        self.emulator.screen.erase_in_display(2)  # what is seen from here on is new
        super().types(text)


DEBUGGED = {"spec": {"run": {"debug_rank": 1}}}


async def test_a_rank_in_the_debugger_is_named_and_nobody_stalls(tmp_path: Path) -> None:
    run = trained(tmp_path, plan=DEBUGGED, reason="rank 1 has a terminal: gpu-engine attach 3f2a")
    app = Mini(run.run, at=50.5)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        text = flat(terminal(app))
        assert "rank 1 has a terminal: gpu-engine attach 3f2a, or D on its screen" in text
        run.write(1, ("debugger", 51, {"place": "train.py:31 in main"}))
        for rank in (0, 1):
            run.write(rank, ("phase", 400, {"phase": "forward", "since": T0 + 50, "step": 99}))
        app.at = 401
        await settled(pilot, lambda store: store.ranks[1].debugged
                      and store.ranks[0].beat > T0 + 399)
        text = flat(terminal(app))
        assert "rank 1 waits in the debugger since 05:50, at train.py:31 in main" in text
        assert "D on its screen goes there, as gpu-engine attach 3f2a does" in text
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


def test_the_panel_makes_room_and_comes_back(home: Path, monkeypatch) -> None:
    """The whole panel in a terminal of its own."""
    for name, value in (("TERM", "xterm-256color"), ("COLUMNS", "160"), ("LINES", "48")):
        monkeypatch.setenv(name, value)
    run = launch(from_dict({
        "task": {"command": [sys.executable, "-c", "print('typed', input('type: '))"]},
        "devices": {"ids": ["cpu:0"]}, "run": {"debug_rank": 0}}), inventory=slots(1))
    with OnScreen(run, argv=(sys.executable, "-m", "gpu_panel"), size=(48, 160)) as one:
        one.sees("has a terminal")
        one.types("4\r")
        one.sees("esc back")
        one.sees("or D on its screen")
        one.types("D")
        one.sees("detaches")
        one.sees("type:")
        one.types("\x1d")
        one.sees("esc back")
        one.types("D")
        one.sees("detaches")
        one.sees("type:")
        one.types("word\r")
        one.sees("completed")
        one.sees("esc back")
        one.types("\x11")
        one.ends(0)
