"""The log pane: following, staying, searching, hostile logs, and the pager."""

from __future__ import annotations

import random
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from textual.app import ComposeResult
from textual.screen import Screen

from gpu_engine.supervisor import logs
from gpu_panel.commands import terminal as lent
from gpu_panel.run.log import lines as log_lines
from gpu_panel.run.log.lines import Log
from gpu_panel.run.log.view import LogView, pieces
from gpu_panel.themed import ThemedApp

from ...panel_kit import screen_text
from ...run_kit import SMALL, Mini, settled, shown, terminal, trained, until

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


async def read(pilot, log: Log) -> LogView:
    view = pilot.app.query_one(LogView)
    view.show(log)
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


def taken(log: Log) -> list[str]:
    new = log.read()
    if new is not None:
        log.take(*new)
    return log.lines


@pytest.fixture
def log(tmp_path: Path) -> Log:
    (tmp_path / "a.log").write_bytes(b"".join(b"line %d\n" % i for i in range(5000)))
    return Log("rank 0", tmp_path / "a.log")


# --- the lines ----------------------------------------------------------------------------------


def test_only_the_last_lines_are_kept_and_the_pager_has_all(log: Log, monkeypatch) -> None:
    monkeypatch.setattr(log_lines, "MOST", 100)
    monkeypatch.setattr(log_lines, "_BYTES", 4000)
    assert taken(log) == [f"line {i}" for i in range(4900, 5000)]
    assert log.cut
    with log.path.open("ab") as file:
        file.write(b"more\nhalf")
    assert taken(log)[-3:] == ["line 4999", "more", "half"]
    with log.path.open("ab") as file:
        file.write(b" a line\n")
    assert (taken(log)[-2:], len(log.lines)) == (["more", "half a line"], 100)
    assert log.gone
    assert [*log.whole()] == [*(f"line {i}\n" for i in range(5000)), "more\n", "half a line\n"]


def test_both_parts_are_one_however_it_grows_and_is_cut(tmp_path: Path) -> None:
    path, random_ = tmp_path / "00000.log", random.Random(3)
    path.touch()
    log, count = Log("rank 0", path), 0
    for _ in range(60):
        more = random_.randrange(1, 200)
        with path.open("ab") as file:
            file.write(b"".join(b"line %d\n" % i for i in range(count, count + more)))
        count += more
        taken(log)
        if path.stat().st_size > 1 << 10 and random_.random() < 0.5:
            assert logs.bound(path, 1 << 10)
            taken(log)
    seen = [line for line in taken(log) if not line.startswith("---")]
    assert seen == [f"line {i}" for i in range(count)]
    anew = taken(Log("opened now", path))
    assert len(anew) > 100
    assert anew[1:] == log.lines[1 - len(anew):]


@given(st.text("ab 漢\u00e9", max_size=60), st.integers(2, 9))
def test_the_rows_of_a_line_are_the_line(text: str, width: int) -> None:
    begins = pieces(text, width)
    parts = [text[a:b] for a, b in zip(begins, [*begins[1:], len(text)], strict=True)]
    assert "".join(parts) == text
    assert all(cell_len(part) <= width for part in parts)


# --- the view -----------------------------------------------------------------------------------


async def test_nothing_hostile_reaches_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(HOSTILE)
    async with Pane().run_test(size=(80, 24)) as pilot:
        view = await read(pilot, Log("rank 0", tmp_path / "a.log"))
        shown = terminal(pilot.app)
        assert not harmful(shown)
        assert "[bold]markup[/bold] [/] [link=x]" in shown
        assert "100% done" in shown
        assert "last without an end" in shown
        assert "owned" not in shown
        assert "aGFja2Vk" not in shown
        for text in (view.lines):
            assert not harmful(text)
        for strip in pilot.app.screen._compositor.render_strips():
            assert strip.cell_length == 80


async def test_it_follows_the_end(log: Log) -> None:
    async with Pane().run_test(size=(40, 10)) as pilot:
        view = await read(pilot, log)
        assert seen(pilot)[-1].startswith("line 4999")
        with log.path.open("ab") as file:
            file.write(b"more\n")
        view.read_on()
        await idle(pilot)
        assert seen(pilot)[-1].startswith("more")
        assert view.border_subtitle == "following · 5,001 lines"


async def test_it_stays_where_one_reads(log: Log) -> None:
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
        view = await read(pilot, Log("rank 0", tmp_path / "a.log"))
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


async def test_a_file_that_shrinks_or_goes_hurts_nobody(log: Log) -> None:
    async with Pane().run_test(size=(40, 10)) as pilot:
        view = await read(pilot, log)
        log.path.write_text("short\n")
        view.read_on()
        await idle(pilot)
        assert seen(pilot)[-1].startswith("short")
        log.path.unlink()
        view.read_on()
        await idle(pilot)
        assert seen(pilot)[-1].startswith("short")


async def test_no_file_says_so(tmp_path: Path) -> None:
    async with Pane().run_test(size=(40, 10)) as pilot:
        await read(pilot, Log("rank 0", tmp_path / "none.log"))
        assert seen(pilot)[0] == "no output yet"


async def test_long_lines_are_reached_sideways(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("0123456789" * 20 + "\n")
    async with Pane().run_test(size=(40, 10)) as pilot:
        view = await read(pilot, Log("rank 0", tmp_path / "a.log"))
        view.focus()
        await pilot.press("right")
        await pilot.pause()
        assert seen(pilot)[0].startswith("6789012345")


async def test_text_is_shown_too() -> None:
    async with Pane().run_test(size=(40, 10)) as pilot:
        await read(pilot, Log("traceback", text="Traceback\nValueError: [x]\n"))
        assert seen(pilot)[:2] == ["Traceback", "ValueError: [x]"]


async def test_asking_again_while_it_reads_is_nothing(log: Log) -> None:
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
        view = await read(pilot, Log("rank 0", path))
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
        view = await read(pilot, Log("rank 0", path))
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


async def test_it_stays_at_its_lines_while_old_ones_are_dropped(log: Log, monkeypatch) -> None:
    monkeypatch.setattr(log_lines, "MOST", 100)
    async with Pane().run_test(size=(40, 10)) as pilot:
        view = await read(pilot, log)
        view.focus()
        await pilot.press(*["up"] * 20)
        before = seen(pilot)
        with log.path.open("ab") as file:
            file.write(b"more\n" * 30)
        view.read_on()
        await idle(pilot)
        assert [row[:9] for row in seen(pilot)] == [row[:9] for row in before]
        assert view.current() == "line 4979"
        assert view.border_subtitle == "last 20,000 lines (v: all)"


async def test_matches_are_counted_and_shown_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"".join(b"line %d\n" % i for i in range(500)))
    async with Pane().run_test(size=(60, 10)) as pilot:
        view = await read(pilot, Log("rank 0", path))
        view.search("line 4", -1)
        await idle(pilot)
        assert view.border_subtitle == "111 of 111 · 500 lines"
        view.find_next(-1)
        await idle(pilot)
        assert view.border_subtitle == "110 of 111 · 500 lines"
        view.only_matches(filtered=True)
        await idle(pilot)
        assert view.current() == "line 498"
        assert view.count == 111
        view.find_next(1)
        view.find_next(1)
        assert view.current() == "line 4"  # round from the last to the first
        with path.open("ab") as file:
            file.write(b"line 4 again\nnothing\n")
        view.read_on()
        await idle(pilot)
        assert view.count == 112
        view.action_last()
        await idle(pilot)
        assert seen(pilot)[-1].startswith("line 4 again")
        view.only_matches(filtered=False)
        await idle(pilot)
        assert seen(pilot)[-1].startswith("nothing")
        view.search("no such thing")
        view.only_matches(filtered=True)
        await idle(pilot)
        assert seen(pilot)[0] == "no line with no such thing"
        view.search("")
        await idle(pilot)
        assert view.count == 502


async def test_long_lines_are_wrapped(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("".join(f"{i:02d}" + "-" * 46 + f"{i:02d}\n" for i in range(40)))
    async with Pane().run_test(size=(40, 10)) as pilot:
        view = await read(pilot, Log("rank 0", path))
        view.focus()
        view.action_wrap()
        await idle(pilot)
        rows = [row.rstrip("▁▂▃▄▅▆▇█ ") for row in seen(pilot)]
        assert rows[-2:] == ["39" + "-" * 37, "-" * 9 + "39"]
        assert "wrap" in str(view.border_subtitle)
        for pressed, top in ((["home"], "00"), (["down"] * 6, "06"), (["end", "up", "up"], "37")):
            await pilot.press(*pressed)
            await idle(pilot)
            assert view.current().startswith(top)
            await until(pilot, lambda top=top: any(
                row.startswith(f"{top}-") for row in seen(pilot)))
        await pilot.resize_terminal(30, 22)
        await idle(pilot)
        view.search("39-", 1)
        await idle(pilot)
        await until(pilot, lambda: any(row.startswith("39-") for row in seen(pilot)))
        for strip in pilot.app.screen._compositor.render_strips():
            assert strip.cell_length == 30


async def test_only_matches_by_its_keys(tmp_path: Path, home: Path) -> None:
    run = trained(tmp_path)
    run.log(0, b"".join(b"14:%02d:00 tick %d\n" % (i, i) for i in range(60)))
    app = Mini(run.run)
    async with app.run_test(size=SMALL, notifications=True) as pilot:
        await settled(pilot)
        view = app.run_screen.query_one(LogView)
        await pilot.press("F", *"tick 4", "enter")
        await shown(pilot)
        assert str(view.border_subtitle).startswith("11 of 11 · only matches")
        assert "says" not in terminal(app)
        await pilot.press("F")
        await shown(pilot)
        assert view.count == 110
        await pilot.press("F", "slash", *"tick 5", "enter")
        await shown(pilot)
        assert str(view.border_subtitle).startswith("2 of 11 · only matches")
        await pilot.press("slash", "escape", "w")
        await shown(pilot)
        assert str(view.border_subtitle).startswith("wrap · ")
        assert view.needle == ""


# --- the pager ----------------------------------------------------------------------------------


async def test_the_pager_gets_the_whole_log_without_what_a_terminal_obeys(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained(tmp_path)
    run.log(0, HOSTILE)
    opened: list[tuple[list[str], str]] = []
    monkeypatch.setattr(lent, "in_terminal",
                        lambda app, argv, given: opened.append((argv, "".join(given))))
    app = Mini(run.run)
    async with app.run_test(size=(160, 48)) as pilot:
        await settled(pilot)
        view = app.screen.query_one(LogView)
        await until(pilot, lambda: len(view.lines) > 50)
        for wanted, argv in (("less -S", ["less", "-S", "+G"]), ("bat --plain", ["bat", "--plain"]),
                             (" ", ["less", "+G"])):
            monkeypatch.setenv("PAGER", wanted)
            await pilot.press("v")
            await until(pilot, lambda: opened)
            got, text = opened.pop()
            assert got == argv
            assert not harmful(text)
            assert text.startswith("rank 0 says 0\n")
        monkeypatch.setenv("PAGER", "x 'y")
        await pilot.press("v")
        await until(pilot, lambda: "No closing quotation" in screen_text(app))


async def test_a_terminal_that_can_not_be_lent_is_said(tmp_path: Path) -> None:
    app = Mini(trained(tmp_path).run)
    async with app.run_test(size=(160, 48)) as pilot:
        await settled(pilot)
        await until(pilot, lambda: app.screen.query_one(LogView).lines)
        await pilot.press("v")
        await until(pilot, lambda: "can't give this terminal" in screen_text(app))
