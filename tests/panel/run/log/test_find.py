"""Counting and filtering matches, wrapping, going to a line or a time."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from gpu_panel.run.log import times
from gpu_panel.run.log.file import Lines, LogFile, TextLines
from gpu_panel.run.log.joined import JoinedLog
from gpu_panel.run.log.matches import Matches
from gpu_panel.run.log.view import LogView, page_from, page_to, pieces

from ...run_kit import SMALL, Mini, settled, shown, terminal, trained, until
from .test_file import counted
from .test_view import Pane, idle, read, seen

lines_of_text = st.lists(st.text("ab xÄ漢\t", max_size=12), min_size=1, max_size=40)


@given(lines_of_text, st.sampled_from(["a", "b x", "A", "ä", "漢", "q"]), st.booleans())
@example(["", "a", "aaaaab\tx", "", ""], "b x", False)  # a tab that is shown as one blank
@example(["a", "x", "a\x1b[31mb x", ""], "ab x", True)  # an escape in the middle of the text
@settings(deadline=None)
def test_every_line_with_the_text_is_found(tmp_path_factory, rows, needle, ended) -> None:
    """As a loop over the shown lines finds them; also after the log has grown."""
    path = tmp_path_factory.mktemp("log") / "a.log"
    half = len(rows) // 2
    path.write_bytes("\n".join(rows[:half]).encode())
    log, matches, stop = LogFile(path, ""), Matches(needle), threading.Event()
    log.update()
    while matches.extend(log, stop):
        pass
    with path.open("ab") as file:
        file.write(("\n".join(rows[half:]) + ("\n" if ended else "")).encode())
    log.update()
    while matches.extend(log, stop):
        pass
    fold = needle == needle.lower()
    shown = [log.line(i) for i in range(len(log))]
    wanted = [i for i, row in enumerate(shown) if needle in (row.lower() if fold else row)]
    assert list(matches.numbers) == wanted
    assert matches.complete
    log.close()


def test_matches_in_many_blocks_and_in_both_parts(tmp_path: Path) -> None:
    older, path = tmp_path / "a.log.1", tmp_path / "a.log"
    older.write_bytes(b"".join(b"%d %s\n" % (i, b"x" * 90) for i in range(9000)))
    path.write_bytes(b"".join(b"%d %s\n" % (i, b"y" * 90) for i in range(9000, 12_000)))
    log = JoinedLog(path, "")
    while log.update():
        pass
    assert counted(log, "000 ") == [0 + 1000 * i for i in range(1, 12)]
    log.close()


@given(st.text("ab 漢\u00e9", max_size=60), st.integers(2, 9))
def test_the_rows_of_a_line_are_the_line(text: str, width: int) -> None:
    begins = pieces(text, width)
    parts = [text[a:b] for a, b in zip(begins, [*begins[1:], len(text)], strict=True)]
    assert "".join(parts) == text
    assert all(cell_len(part) <= width for part in parts)


@given(st.lists(st.integers(1, 5), max_size=12), st.integers(1, 8), st.integers(0, 12))
def test_pages_are_rows_in_order(rows: list[int], height: int, top: int) -> None:
    whole = [(entry, at) for entry, many in enumerate(rows) for at in range(many)]

    def begins(entry: int) -> list[int]:
        return list(range(rows[entry]))

    top = min(top, max(len(rows) - 1, 0))
    from_top = [p for p in whole if p[0] >= top]
    assert page_from(top, len(rows), height, begins) == from_top[:height]
    assert page_to(len(rows), height, begins) == whole[-height:]


# --- times --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("line", "seconds"), [
    ("2026-11-22 14:05:10,123 INFO x", 50_710), ("[2026/11/22 14:05:10] x", 50_710),
    ("2026-11-22T14:05:10Z x", 50_710), ("14:05:10 x", 50_710), ("INFO 9:00:00 x", 32_400),
    ("step 14:05 of", None), ("25:00:00 x", None), ("2026-13-40 14:05:10", None),
    ("x" * 80 + " 14:05:10", None), ("1:2:3:4", None), ("", None)])
def test_the_time_of_a_line(line: str, seconds: int | None) -> None:
    found = times.stamp_in(line)
    assert (found.seconds if found is not None else None) == seconds


def stamped(dated: bool) -> TextLines:
    """A line every ten minutes for a day and a half, from 08:00 on, each with one without a
    time."""
    begin = datetime(2026, 11, 21, 8)
    how = "%Y-%m-%d %H:%M:%S" if dated else "%H:%M:%S"
    many = 216 if dated else 90
    return TextLines("", "\n".join(f"{(begin + timedelta(minutes=10 * i)).strftime(how)} line {i}\n"
                                   "  and more" for i in range(many)))


@pytest.mark.parametrize(("wanted", "line"), [
    ("2026-11-21 08:00", 0), ("2026-11-21 09:05", 7 * 2), ("2026-11-22 00:00:00", 96 * 2),
    ("14:00", 180 * 2), ("2020-01-01 00:00", 0), ("20:00", 72 * 2)])
def test_going_to_a_time(wanted: str, line: int) -> None:
    """A time without a day is the last such time."""
    found = times.typed(wanted)
    assert found is not None
    assert times.find(stamped(dated=True), found) == line


def test_times_that_are_not_there() -> None:
    later = times.typed("2026-12-01 10:00")
    assert later is not None
    assert times.find(stamped(dated=True), later) == "the last time in this log is " \
        "2026-11-22 19:50:00"
    noon = times.typed("12:00")
    assert noon is not None
    assert times.find(stamped(dated=False), noon) == 24 * 2
    assert times.find(TextLines("", "a\nb"), noon) == "the lines of this log have no times"
    assert [times.typed(t) for t in ("noon", "14", "24:00", "", "14:05:99")] == [None] * 5


# --- the view -----------------------------------------------------------------------------------


async def test_matches_are_counted_and_shown_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"".join(b"line %d\n" % i for i in range(500)))
    async with Pane().run_test(size=(60, 10)) as pilot:
        view = await read(pilot, LogFile(path, "rank 0"))
        view.search("line 4", -1)
        await idle(pilot)
        assert view.border_subtitle == "111 of 111 · line 500 · 500 lines"
        view.find_next(-1)
        await idle(pilot)
        assert view.border_subtitle == "110 of 111 · line 499 · 500 lines"
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
        view = await read(pilot, LogFile(path, "rank 0"))
        view.focus()
        view.action_wrap()
        await idle(pilot)
        rows = [row.rstrip("▁▂▃▄▅▆▇█ ") for row in seen(pilot)]
        assert rows[-2:] == ["39" + "-" * 37, "-" * 9 + "39"]
        assert "wrap" in str(view.border_subtitle)
        await pilot.press("home")
        await idle(pilot)
        assert seen(pilot)[0].startswith("00-")
        await pilot.press(*["down"] * 6)
        await idle(pilot)
        assert view.current().startswith("06")
        await until(pilot, lambda: any(row.startswith("06-") for row in seen(pilot)))
        await pilot.press("end", "up", "up")
        await idle(pilot)
        assert view.current().startswith("37")
        await until(pilot, lambda: any(row.startswith("37-") for row in seen(pilot)))
        await pilot.resize_terminal(30, 22)
        await idle(pilot)
        view.search("39-", 1)
        await idle(pilot)
        assert view.current().startswith("39")
        await until(pilot, lambda: any(row.startswith("39-") for row in seen(pilot)))
        for strip in pilot.app.screen._compositor.render_strips():
            assert strip.cell_length == 30


async def test_going_to_a_line_by_its_keys(tmp_path: Path, home: Path) -> None:
    run = trained(tmp_path)
    run.log(0, b"".join(b"14:%02d:00 tick %d\n" % (i, i) for i in range(60)))
    app = Mini(run.run)
    async with app.run_test(size=SMALL, notifications=True) as pilot:
        await settled(pilot)
        view = app.run_screen.query_one(LogView)
        await pilot.press("number_sign", *"7", "enter")
        await shown(pilot)
        assert view.current() == "rank 0 says 6"
        await pilot.press("number_sign", *"14:30", "enter")
        await shown(pilot)
        assert view.current() == "14:30:00 tick 30"
        for wrong, said in (("999", "There is no line 999: this log has 110"),
                            ("soon", "Neither a line nor a time: soon"),
                            ("15:10", "Not found: the last time in this log is 14:59:00")):
            await pilot.press("number_sign", *wrong, "enter")
            await shown(pilot)
            assert said in " ".join(n.message for n in app._notifications), wrong
        assert view.current() == "14:30:00 tick 30"
        await pilot.press("F", *"tick 4", "enter")
        await shown(pilot)
        assert str(view.border_subtitle).startswith("2 of 11 · only matches")
        assert view.current() == "14:40:00 tick 40"
        assert "says" not in terminal(app)
        await pilot.press("F")
        await shown(pilot)
        assert (view.count, view.current()) == (110, "14:40:00 tick 40")
        await pilot.press("F", "slash", *"tick 5", "enter")
        await shown(pilot)
        assert str(view.border_subtitle).startswith("2 of 11 · only matches")
        assert view.current() == "14:50:00 tick 50"
        await pilot.press("slash", "escape", "w")
        await shown(pilot)
        assert view.current() == "14:50:00 tick 50"
        assert str(view.border_subtitle).startswith("wrap · ")
        assert view.needle == ""


async def test_the_cursor_stays_on_its_line_while_matches_are_counted(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a long log this takes a while; until then there is nothing to put it on."""
    path = tmp_path / "a.log"
    path.write_bytes(b"".join(b"line %d %s\n" % (i, b"even" if i % 2 == 0 else b"odd")
                              for i in range(100)))
    go_on, extend = threading.Event(), Matches.extend

    def slowly(self: Matches, lines: Lines, stop: threading.Event) -> bool:
        go_on.wait()
        return extend(self, lines, stop)

    monkeypatch.setattr(Matches, "extend", slowly)
    async with Pane().run_test(size=(40, 12)) as pilot:
        log = LogFile(path, "")
        log.update()
        view = await read(pilot, log)
        try:
            view.move_to(41)
            view.search("odd", 1)
            view.only_matches(filtered=True)
            await pilot.pause()
            before = view.line
        finally:
            go_on.set()
        await idle(pilot)
        assert (before, view.cursor, view.current()) == (41, 20, "line 41 odd")
        go_on.clear()
        try:
            view.search("even", 1)
            view.action_move(1)  # the person goes elsewhere meanwhile
        finally:
            go_on.set()
        await idle(pilot)
        assert view.cursor == 0
