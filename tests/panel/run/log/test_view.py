"""The log pane: following, staying, searching, and hostile logs."""

from __future__ import annotations

import asyncio
import threading
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from textual.app import ComposeResult
from textual.screen import Screen

from gpu_panel.run.log.file import Lines, LogFile, TextLines
from gpu_panel.run.log.matches import Matches
from gpu_panel.run.log.view import LogView
from gpu_panel.themed import ThemedApp

from ...run_kit import terminal

HOSTILE = b"".join([
    b"\x1b]52;c;aGFja2Vk\x07clipboard\n", b"\x1b]0;owned\x1b\\title\n", b"\x1b[2J\x1b[Hcleared\n",
    "\u202etxt.exe\u2066 bidi\n".encode(), b"[bold]markup[/bold] [/] [link=x]\n",
    b"x" * (1 << 20) + b"\n", b"nul\x00\x00byte\n", b"bad utf-8 \xff\xc3\n",
    b"c1 \xc2\x9b31m red\n",
    b"\x1bPqsixel\x1b\\picture\n", b"\x1b]8;;http://evil\x07link\x1b]8;;\x07\n", b"tab\there\n",
    "漢字 and 👩\u200d🚀 and \ufeffbom\n".encode(), b"10%\r50%\r100% done\n",
    b"\x1b]0;never ended\n",
    b"last without an end"])


class Pane(ThemedApp):
    def compose(self) -> ComposeResult:
        yield LogView()


async def read(pilot, lines: object) -> LogView:
    view = pilot.app.query_one(LogView)
    view.show(lines)
    await idle(pilot)
    return view


async def idle(pilot) -> None:
    for _ in range(3):
        await pilot.app.workers.wait_for_complete()
        await pilot.pause()


def seen(pilot) -> list[str]:
    return [row.rstrip() for row in terminal(pilot.app).splitlines()]


def harmful(text: str) -> list[str]:
    return [hex(ord(c)) for c in text.replace("\n", "")
            if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


@pytest.fixture
def log(tmp_path: Path) -> LogFile:
    (tmp_path / "a.log").write_bytes(b"".join(b"line %d\n" % i for i in range(5000)))
    return LogFile(tmp_path / "a.log", "rank 0")


async def test_nothing_hostile_reaches_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(HOSTILE)
    async with Pane().run_test(size=(80, 24)) as pilot:
        view = await read(pilot, LogFile(tmp_path / "a.log", "rank 0"))
        shown = terminal(pilot.app)
        assert not harmful(shown)
        assert "[bold]markup[/bold] [/] [link=x]" in shown
        assert "100% done" in shown
        assert "last without an end" in shown
        assert "owned" not in shown
        assert "aGFja2Vk" not in shown
        for text in (view._text(i) for i in range(len(view.lines))):
            assert not harmful(text)
        for strip in pilot.app.screen._compositor.render_strips():
            assert strip.cell_length == 80


async def test_it_follows_the_end(log: LogFile) -> None:
    async with Pane().run_test(size=(40, 10)) as pilot:
        view = await read(pilot, log)
        assert seen(pilot)[-1].startswith("line 4999")
        with log.path.open("ab") as file:
            file.write(b"more\n")
        view.read_on()
        await idle(pilot)
        assert seen(pilot)[-1].startswith("more")
        assert view.border_subtitle == "following · 5,001 lines"


async def test_it_stays_where_one_reads(log: LogFile) -> None:
    async with Pane().run_test(size=(40, 10)) as pilot:
        view = await read(pilot, log)
        view.focus()
        await pilot.press("home")
        assert seen(pilot)[0].startswith("line 0")
        with log.path.open("ab") as file:
            file.write(b"more\n")
        view.read_on()
        await idle(pilot)
        assert seen(pilot)[0].startswith("line 0")
        await pilot.press("down", "down", "pagedown")
        assert view.current() == "line 11"
        await pilot.press("f")
        await idle(pilot)
        assert seen(pilot)[-1].startswith("more")


async def test_search_is_smart_about_case_and_goes_round(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("Warning one\nnothing\nWARNING two\nnothing\nwarning 3\n\n")
    async with Pane().run_test(size=(40, 10)) as pilot:
        view = await read(pilot, LogFile(tmp_path / "a.log", "rank 0"))
        view.search("warning", -1)
        await idle(pilot)
        assert view.current() == "warning 3"
        view.find_next(-1)
        await idle(pilot)
        assert view.current() == "WARNING two"
        view.find_next(1)
        await idle(pilot)
        view.find_next(1)
        await idle(pilot)
        assert view.current() == "Warning one"
        view.search("WARNING", 1)
        await idle(pilot)
        assert view.current() == "WARNING two"
        marked = [s.text for s in view.render_line(2) if s.text == "WARNING"]
        assert marked == ["WARNING"]


async def test_a_search_upward_does_not_wait_until_all_is_counted(
        log: LogFile, monkeypatch: pytest.MonkeyPatch) -> None:
    counts, extend = threading.Event(), Matches.extend

    def waits(self: Matches, lines: Lines, stop: threading.Event) -> bool:
        return counts.wait(60) and extend(self, lines, stop)

    monkeypatch.setattr(Matches, "extend", waits)
    async with Pane().run_test(size=(40, 10)) as pilot:
        view = await read(pilot, log)
        last = view.line
        view.search("line 4", -1)
        try:
            async with asyncio.timeout(50):
                while not view.current().startswith("line 4"):
                    await asyncio.sleep(0.01)
            found = view.line
            assert not counts.is_set()
        finally:
            counts.set()
        await idle(pilot)
        assert found == max(n for n in range(last + 1) if f"line {n}".startswith("line 4"))
        assert view.line == found, "nor is it gone to again as the count ends"


async def test_a_search_in_one_log_does_not_move_in_the_next(
        log: LogFile, monkeypatch: pytest.MonkeyPatch) -> None:
    counts, extend = threading.Event(), Matches.extend

    def waits(self: Matches, lines: Lines, stop: threading.Event) -> bool:
        return counts.wait(60) and extend(self, lines, stop)

    monkeypatch.setattr(Matches, "extend", waits)
    async with Pane().run_test(size=(40, 10)) as pilot:
        view = await read(pilot, log)
        view.search("other", -1)
        try:
            view.show(TextLines("", "other\n" + "last\n" * 50))
        finally:
            counts.set()
        await idle(pilot)
        assert view.following
        assert view.current() == "last"


async def test_a_file_that_shrinks_or_goes_hurts_nobody(log: LogFile) -> None:
    async with Pane().run_test(size=(40, 10)) as pilot:
        view = await read(pilot, log)
        log.path.write_text("short\n")
        view.read_on()
        await idle(pilot)
        assert seen(pilot)[0].startswith("short")
        log.path.unlink()
        view.read_on()
        await idle(pilot)
        assert seen(pilot)[0].startswith("short")  # the open file still has it


async def test_no_file_says_so(tmp_path: Path) -> None:
    async with Pane().run_test(size=(40, 10)) as pilot:
        await read(pilot, LogFile(tmp_path / "none.log", "rank 0"))
        assert seen(pilot)[0] == "no output yet"


async def test_long_lines_are_reached_sideways(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("0123456789" * 20 + "\n")
    async with Pane().run_test(size=(40, 10)) as pilot:
        view = await read(pilot, LogFile(tmp_path / "a.log", "rank 0"))
        view.focus()
        await pilot.press("right")
        await pilot.pause()
        assert seen(pilot)[0].startswith("6789012345")


async def test_text_is_shown_too() -> None:
    async with Pane().run_test(size=(40, 10)) as pilot:
        await read(pilot, TextLines("traceback", "Traceback\nValueError: [x]\n"))
        assert seen(pilot)[:2] == ["Traceback", "ValueError: [x]"]


async def test_asking_again_while_it_reads_is_nothing(log: LogFile) -> None:
    async with Pane().run_test(size=(40, 10)) as pilot:
        view = pilot.app.query_one(LogView)
        view.show(log)
        for _ in range(50):  # a painter does not wait for the reader
            view.read_on()
        await idle(pilot)
        assert seen(pilot)[-1].startswith("line 4999")


async def test_what_is_found_far_to_the_right_is_brought_into_view(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"first\n" + b"x" * 200_000 + b" the loss is NaN here\n" + b"last\n" * 50)
    async with Pane().run_test(size=(80, 24)) as pilot:
        view = await read(pilot, LogFile(path, "rank 0"))
        view.search("loss is nan")
        await idle(pilot)
        assert view.cursor == 1
        assert "the loss is NaN here" in terminal(pilot.app)
        view.search("first", -1)
        await idle(pilot)
        assert seen(pilot)[1].startswith("first") or seen(pilot)[0].startswith("first")


async def test_a_log_that_grows_lays_out_the_screen_only_when_a_scrollbar_comes(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All other widgets would be arranged and drawn again for each line that a run prints."""
    path, laid_out, layout = tmp_path / "a.log", [], Screen._refresh_layout

    def counted(self: Screen, *args: Any, **more: Any) -> None:
        laid_out.append(1)
        layout(self, *args, **more)

    monkeypatch.setattr(Screen, "_refresh_layout", counted)
    path.write_bytes(b"line 0\n")
    async with Pane().run_test(size=(40, 10)) as pilot:
        view = await read(pilot, LogFile(path, "rank 0"))
        layouts = []
        for lines in (3, 50, 51, 500):
            laid_out.clear()
            with path.open("ab") as file:
                file.writelines(b"line %d\n" % i for i in range(len(view.lines), lines))
            view.read_on()
            await idle(pilot)
            layouts.append(bool(laid_out))
            assert [row for row in seen(pilot) if row][-1].startswith(f"line {lines - 1}")
            assert view.max_scroll_y == max(lines - view.scrollable_content_region.height, 0)
            assert view.show_vertical_scrollbar == (lines > 3)
            if lines > 3:
                bar = view.vertical_scrollbar
                assert (bar.window_virtual_size, bar.position) == (lines, view.max_scroll_y)
        assert layouts == [False, True, False, False]


async def test_what_is_found_above_does_not_move_who_has_gone_elsewhere(log) -> None:
    async with Pane().run_test(size=(40, 10)) as pilot:
        view = await read(pilot, log)
        view.search("line 4", 1)
        await idle(pilot)
        view.to_line(7)
        view._found_back(view._matches, 100, 49)
        assert view.line == 7


async def test_going_to_a_time_ends_the_search_under_way(log) -> None:
    async with Pane().run_test(size=(40, 10)) as pilot:
        view = await read(pilot, log)
        view.to_line(7)
        view._matches, view._sought = Matches("line 4"), (100, -1)  # still counting
        view.go_to("15:10")
        view._found_back(view._matches, 100, 49)
        await idle(pilot)
        assert view.line == 7, "no time is in this log, and no match is gone to either"
