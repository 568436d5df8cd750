"""A log that was emptied when it grew too large, read together with its older part."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from textual.app import ComposeResult

from gpu_engine.supervisor import logs
from gpu_panel.run.log import joined as joined_log
from gpu_panel.run.log.joined import JoinedLog
from gpu_panel.run.log.view import LogView
from gpu_panel.themed import ThemedApp

from ...run_kit import terminal
from .test_file import counted


class Growing:
    """A log to which lines are appended, and which is emptied as by the supervisor."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "00000.log"
        self.path.touch()
        self.count = 0

    def say(self, lines: int) -> None:
        with self.path.open("ab") as file:
            file.write(b"".join(b"line %d\n" % i for i in range(self.count, self.count + lines)))
        self.count += lines

    def cut(self) -> None:
        assert logs.bound(self.path, 1 << 10)

    def held(self) -> list[str]:
        older = logs.old(self.path)
        data = (older.read_bytes() if older.exists() else b"") + self.path.read_bytes()
        return data.decode().splitlines()


def text(log: JoinedLog) -> list[str]:
    while log.update() or log.share < 1.0:
        pass
    return [log.line(i) for i in range(len(log))]


def test_both_parts_are_one_however_it_grows_and_is_cut(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined_log, "_PATIENCE", -1)  # else a log that is as long again waits
    log, random_ = Growing(tmp_path), random.Random(3)
    joined = JoinedLog(log.path, "rank 0")
    for _ in range(60):
        log.say(random_.randrange(1, 200))
        if random_.random() < 0.5:
            joined.update(random_.randrange(1, 4000))  # perhaps not all of it
        if log.path.stat().st_size > 1 << 10 and random_.random() < 0.5:
            log.cut()
        if random_.random() < 0.3:
            assert text(joined) == log.held()
    assert text(joined) == log.held()
    joined.close()


def test_one_that_was_cut_before_it_is_opened(tmp_path: Path) -> None:
    log = Growing(tmp_path)
    log.say(140)
    log.cut()
    log.say(5)
    joined = JoinedLog(log.path, "rank 0")
    found = text(joined)
    assert found == log.held()
    assert found[0] == "line 0"
    assert found[-1] == "line 144"
    assert joined.gone == 0


def test_search_goes_through_both(tmp_path: Path) -> None:
    log = Growing(tmp_path)
    log.say(140)
    log.cut()
    log.say(50)
    joined = JoinedLog(log.path, "rank 0")
    held = text(joined)
    for needle in ("line 3", "line 139", "line 150", "LINE"):
        assert counted(joined, needle) == [i for i, line in enumerate(held) if needle in line]


def test_between_the_copy_and_the_cut_nothing_is_shown_twice(tmp_path: Path) -> None:
    log = Growing(tmp_path)
    log.say(140)
    joined = JoinedLog(log.path, "rank 0")
    before = text(joined)
    shutil.copy(log.path, logs.old(log.path))
    joined.update()
    assert [joined.line(i) for i in range(len(joined))] == before
    with log.path.open("r+b") as file:
        file.truncate(0)
    log.say(3)
    assert text(joined) == log.held()


def test_lines_that_left_at_the_front_are_counted(tmp_path: Path) -> None:
    log = Growing(tmp_path)
    log.say(140)
    joined = JoinedLog(log.path, "rank 0")
    text(joined)
    log.cut()
    text(joined)
    assert joined.gone == 0  # all of it is in the older part
    log.say(130)
    at = text(joined).index("line 200")
    log.cut()
    assert text(joined).index("line 200") == at - joined.gone


class Pane(ThemedApp):
    def compose(self) -> ComposeResult:
        yield LogView()


async def idle(pilot) -> LogView:
    view = pilot.app.query_one(LogView)
    for _ in range(2):
        view.read_on()
        await pilot.app.workers.wait_for_complete()
        await pilot.pause()
        await pilot.pause()
    return view


def rows(pilot) -> list[str]:
    return [row.rstrip(" ▁▂▃▄▅▆▇█▔▕▐") for row in terminal(pilot.app).splitlines()]


async def test_following_loses_nothing_on_the_screen(tmp_path: Path) -> None:
    log = Growing(tmp_path)
    log.say(140)
    async with Pane().run_test(size=(40, 10)) as pilot:
        pilot.app.query_one(LogView).show(JoinedLog(log.path, "rank 0"))
        await idle(pilot)
        assert rows(pilot) == [f"line {i}" for i in range(130, 140)]
        for _ in range(2):
            log.cut()
            last = log.count - 1
            await idle(pilot)
            seen = rows(pilot)
            assert seen[-1].startswith("--- the output before this is in")
            assert seen[-2] == f"line {last}"
            assert seen[0] == f"line {last - 8}"
            log.say(140)
            await idle(pilot)
            assert rows(pilot)[-1] == f"line {log.count - 1}"


async def test_whoever_reads_on_the_way_stays_where_they_are(tmp_path: Path) -> None:
    log = Growing(tmp_path)
    log.say(140)
    log.cut()
    log.say(140)
    async with Pane().run_test(size=(40, 10)) as pilot:
        pilot.app.query_one(LogView).show(JoinedLog(log.path, "rank 0"))
        view = await idle(pilot)
        view.move_to(200)
        await idle(pilot)
        seen, line = rows(pilot), view.current()
        assert f"line {199}" in seen
        log.cut()
        view = await idle(pilot)
        assert rows(pilot) == seen
        assert view.current() == line
        log.say(10)
        view = await idle(pilot)
        assert rows(pilot) == seen
        view.move_to(0)  # older lines are gone; the kept ones start here
        assert view.current() == "line 140" or view.current().startswith("---")
