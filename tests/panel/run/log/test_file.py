"""The file under the log view: big, growing, cut, replaced, hostile."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_engine.common.clean import clean_bytes
from gpu_panel.run.log import file as log_file
from gpu_panel.run.log import matches as log_matches
from gpu_panel.run.log.file import Lines, LogFile, TextLines
from gpu_panel.run.log.matches import Matches, last_before


def whole(log: LogFile) -> list[str]:
    while log.update():
        pass
    return [log.line(i) for i in range(len(log))]


def counted(log: Lines, needle: str) -> list[int]:
    matches = Matches(needle)
    while matches.extend(log, threading.Event()):
        pass
    return list(matches.numbers)


def expected(data: bytes) -> list[str]:
    rows = data.split(b"\n")
    return [clean_bytes(r) for r in (rows if rows[-1] else rows[:-1])]


chunks = st.lists(st.sampled_from([
    b"a\n", b"\n", b"tail", b"x" * 40 + b"\n", b"\xff\n", b"\r1\r2\n"]),
                  max_size=30)


@given(st.lists(chunks, max_size=5), st.integers(1, 50), st.integers(5, 64))
@settings(max_examples=60)
def test_every_line_is_found_however_the_file_grows(
        tmp_path_factory: pytest.TempPathFactory, appended: list[list[bytes]], limit: int,
        block: int) -> None:
    path = tmp_path_factory.mktemp("log") / "a.log"
    patch = pytest.MonkeyPatch()
    patch.setattr(log_file, "BLOCK", block)
    try:
        log = LogFile(path, "a")
        data = b""
        for part in appended:
            new = b"".join(part)
            data += new
            with path.open("ab") as file:
                file.write(new)
            log.update(limit)  # perhaps not all of it
        assert whole(log) == expected(data)
        assert log.share == 1.0
    finally:
        log.close()
        patch.undo()


@given(chunks, st.integers(5, 64), st.sampled_from(["a", "x", "TAIL", "tail", "2", "�"]))
@settings(max_examples=60)
def test_search_finds_what_a_plain_look_finds(
        tmp_path_factory: pytest.TempPathFactory, part: list[bytes], ahead: int,
        needle: str) -> None:
    path = tmp_path_factory.mktemp("log") / "a.log"
    path.write_bytes(b"".join(part))
    patch = pytest.MonkeyPatch()
    patch.setattr(log_file, "_AHEAD", ahead)
    log = LogFile(path, "a")
    try:
        lines = whole(log)
        hits = [i for i, text in enumerate(lines)
                if needle in (text.lower() if needle.islower() else text)]
        matches, stop = Matches(needle), threading.Event()
        while matches.extend(log, stop):
            pass
        for start in range(len(lines)):
            after = [h for h in hits if h >= start]
            before = [h for h in hits if h <= start]
            assert matches.beside(start, 1) == (
                (min(after or hits), not after) if hits else None)
            assert matches.beside(start, -1) == (
                (max(before or hits), not before) if hits else None)
            for at_once in (1, 3, 2048):
                patch.setattr(log_matches, "_BACK", at_once)
                assert last_before(log, needle, start, stop) == max(before, default=None)
    finally:
        log.close()
        patch.undo()


def test_missing_then_there_then_cut_then_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    log = LogFile(path, "a")
    assert whole(log) == []
    assert log.missing
    path.write_text("one\ntwo\n")
    assert whole(log) == ["one", "two"]
    assert not log.missing
    path.write_text("new\n")  # cut: shorter than what was read
    assert whole(log) == ["new"]
    path.rename(tmp_path / "a.log.1")
    path.write_text("rotated, and longer than before\n")
    assert whole(log) == ["rotated, and longer than before"]
    assert log.generation == 2
    log.close()


def test_a_line_of_200_kb_is_there_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    long = b"begin " + b"x" * 200_000 + b" the Loss is nan"
    path.write_bytes(b"before\n" + long + b"\nafter\n" + long)
    log = LogFile(path, "a")
    assert whole(log) == ["before", long.decode(), "after", long.decode()]
    for needle, found in (("loss is nan", [1, 3]), ("Loss is nan", [1, 3]), ("Loss IS", [])):
        assert counted(log, needle) == found
    log.close()


def test_a_line_of_a_megabyte_is_cut_in_the_middle(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"before\n" + b"x" * (1 << 20) + b"y\nafter\n")
    log = LogFile(path, "a")
    lines = whole(log)
    assert lines[0] == "before"
    assert lines[2] == "after"
    assert lines[1].startswith("x" * (1 << 17) + " … 786,433 bytes left out … x")
    assert lines[1].endswith("xy")
    assert counted(log, "xy") == [1]
    log.close()


def test_a_progress_bar_of_a_megabyte_shows_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"".join(b"\r%7d/99999 it" % i for i in range(60_000)))
    log = LogFile(path, "a")
    assert whole(log) == ["  59999/99999 it"]
    log.close()


def test_a_fifo_in_the_place_of_a_log_hangs_nothing(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "a.log")
    log = LogFile(tmp_path / "a.log", "a")
    assert whole(log) == []
    log.close()


def test_text_is_lines_too() -> None:
    text = TextLines("traceback", "Traceback\n  \x1b[31mFile x\nValueError: [bold]no\n")
    assert [text.line(i) for i in range(len(text))] == ["Traceback", "  File x",
                                                        "ValueError: [bold]no"]
    assert [counted(text, needle) for needle in ("value", "Value", "absent")] == [[2], [2], []]
