"""Finding runs in a long list, and doing something to several at once."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from textual.widgets import Input

from gpu_engine.places import verbs
from gpu_engine.runs import folder as runs
from gpu_engine.runs import notes
from gpu_engine.runs.create import create_run
from gpu_engine.runs.digest import By
from gpu_engine.runs.folder import Run
from gpu_engine.runs.notes import Notes
from gpu_engine.runs.sweep import Member
from gpu_panel.common.dialogs import AskLine, Confirm, Message
from gpu_panel.common.key_bar import KeyBar
from gpu_panel.launch import run_actions as several
from gpu_panel.launch import run_line as rows_of_runs
from gpu_panel.launch import runs as runs_pane
from gpu_panel.launch.run_actions import TagsDialog
from gpu_panel.launch.run_feed import RunsFeed
from gpu_panel.launch.run_line import (
    COLUMNS,
    DEFAULT,
    RunLine,
    head_line,
    in_order,
    layout,
    run_line,
    run_row,
)
from gpu_panel.launch.runs import FilterInput, RunsPane

from .... import event_lines, powers
from ....conftest import slots
from ....plans import plan
from ...panel_kit import on_top, panel, says, screen_text, shown, until
from .test_pane import at_the_runs

PLAN = plan(spec={"task": {"use": "toys:Toy"}})


def ended(
        name: str, state='completed', *, loss=1.0, age=0.0, took=60.0, reason: str |
        None=None) -> Run:
    run, lock = create_run(name, "", PLAN)
    os.close(lock)
    event_lines.append(run.events(0), event_lines.line("step", {"step": 9, "n": 1, "loss": loss}))
    now = time.time() - age
    run.write_state(runs.State(state, run.id, name, now, started=now, ended=now + took,
                               reason=reason))
    return run


@pytest.mark.timeout(180)
async def test_runs_are_found_by_typing_and_put_in_order():
    good, bad, worse = (ended("sweep-a", loss=0.5, age=5, took=90),
                        ended("sweep-b", "failed", loss=0.25, age=10, reason="rank 1: boom"),
                        ended("other", "failed", loss=0.75, age=15, took=700))
    notes.change(bad.path, lambda now: Notes("best one", ("lr",), "why?"))
    async with panel(slots(1), size=(300, 48)) as (pilot, screen):
        table = await at_the_runs(pilot, screen, 3)
        await until(pilot, lambda: all(line.read for line in table.lines))
        assert table.keys == [good.id, bad.id, worse.id]
        assert "best one" in shown(table)

        await pilot.press("slash", *"state:failed")
        await until(pilot, lambda: table.keys == [bad.id, worse.id])
        assert "2 of 3 match state:failed" in str(table.border_title)
        await pilot.press("space", *"tag:l", "enter")
        await until(pilot, lambda: table.has_focus)
        assert table.keys == [bad.id]
        assert not screen.query_one(FilterInput).display
        await pilot.press("slash", "escape")
        await until(pilot, lambda: len(table.keys) == 3 and table.has_focus)
        await pilot.press("slash", *"sate:x")
        await until(pilot, lambda: "'sate' is no field" in shown(table))
        await pilot.press("enter", "escape")  # from the list, esc takes the filter away
        await until(pilot, lambda: len(table.keys) == 3)

        while table.order != "loss":
            await pilot.press("o")
        assert table.keys == [bad.id, good.id, worse.id]
        assert "loss▲" in shown(table)
        await pilot.press("O")
        assert table.keys == [worse.id, good.id, bad.id]
        while table.order != "time":
            await pilot.press("o")
        assert table.keys == [worse.id, good.id, bad.id]
        assert "11:40" in shown(table)

        await pilot.press("C")
        await on_top(pilot, AskLine)
        asked = pilot.app.screen.query_one(Input)
        assert asked.value.split() == list(DEFAULT)
        asked.value = " ".join(name for name in (*DEFAULT, "train.lr", "not") if name != "name")
        await says(pilot, "there is no column not")
        await pilot.press("enter", "end", "e", "enter")
        await on_top(pilot, screen)
        assert set(table.columns) == {*DEFAULT, "train.lr", "note"} - {"name"}
        await until(pilot, lambda: "why?" in shown(table))
        assert "best one" not in shown(table)
        kept = Path(os.environ["GPU_PANEL_HOME"]) / "panel.json"
        await until(pilot, lambda: "note" in kept.read_text())
    assert json.loads(kept.read_text())["runs"]["order"] == "time"
    async with panel(slots(1), size=(120, 36)) as (pilot, screen):  # as it was left
        table = await at_the_runs(pilot, screen, 3)
        assert (table.order, set(table.columns)) == (
            "time", {*DEFAULT, "train.lr", "note"} - {"name"})
        assert table.keys == [worse.id, good.id, bad.id]


async def test_one_key_shows_the_best_run_from_anywhere():
    ended("early", loss=0.5, age=100.0)
    best = ended("best", loss=0.25, age=50.0)
    ended("nan", loss=float("nan"), age=20.0)
    ended("late", loss=1.0)
    async with panel(slots(1)) as (pilot, screen):
        await until(pilot, lambda: screen.runs.lines and not screen.runs._unread)
        await pilot.press("b")
        await until(pilot, lambda: screen.runs.has_focus and screen.runs.line_at_cursor
                    and screen.runs.line_at_cursor.id == best.id)
        await pilot.press("b")
        await until(pilot, lambda: screen.runs.line_at_cursor.name == "late")


async def test_several_are_marked_tagged_stopped_and_removed(monkeypatch):
    first, second = ended("one", age=5), ended("two", age=10)
    live, lock = create_run("long", "", PLAN)
    stopped: list[str] = []
    monkeypatch.setattr(verbs, "stop", lambda run: stopped.append(run.id))
    try:
        async with panel(slots(1), size=(80, 24)) as (pilot, screen):
            table = await at_the_runs(pilot, screen, 3)
            assert table.keys == [live.id, first.id, second.id]
            await pilot.press("m", "m", "m")
            await until(pilot, lambda: "3 marked" in str(table.border_title))
            assert shown(table).count("▣") == 3
            assert len(screen.query_one(KeyBar).shown) <= 8

            await pilot.press("t")
            await on_top(pilot, TagsDialog)
            await pilot.press(*"lr a!", "enter")
            await says(pilot, "'a!' can't be a tag")
            await pilot.press("backspace", "backspace", "backspace", "enter")
            await until(pilot, lambda: all(line.tags == ("lr",) for line in table.lines))

            await pilot.press("s")
            await on_top(pilot, Confirm)
            said = " ".join(screen_text(pilot.app).split())
            assert f"Stop run {live.id}" in said
            assert f"{live.id} long" in said
            assert "2 of these 3 runs have ended already" in said
            await pilot.press("y")
            await until(pilot, lambda: stopped == [live.id])

            await pilot.press("x")
            await on_top(pilot, Confirm)
            said = screen_text(pilot.app)
            assert "Remove 2 runs" in said
            assert f"{first.id} one, {second.id} two" in said
            await pilot.press("y")
            await until(pilot, lambda: len(table.lines) == 1)
            assert [run.id for run in runs.all_runs()] == [live.id]
            assert table.marked == {live.id}
            await pilot.press("escape")
            assert not table.marked
    finally:
        os.close(lock)


async def test_a_name_is_written_on_a_run():
    run = ended("toy")
    async with panel(slots(1), size=(80, 24)) as (pilot, screen):
        table = await at_the_runs(pilot, screen, 1)
        await pilot.press("n")
        await on_top(pilot, AskLine)
        notes.change(run.path, lambda now: now.with_tags(["meanwhile"]))
        await pilot.press(*"good", "enter")
        await until(pilot, lambda: table.lines[0].name == "good")
        assert notes.read(run.path) == Notes("good", ("meanwhile",))
        with powers.root_powers_dropped():
            (run.path / "notes.json").chmod(0)
            await pilot.press("n")
            await on_top(pilot, Message)
            assert "can't be read: permission denied" in " ".join(
                screen_text(pilot.app).replace("│", "").split())
            (run.path / "notes.json").chmod(0o600)


async def test_what_is_kept_of_a_night():
    good, bad, other = ended("good", age=5), ended("bad", age=10), ended("other", age=15)

    def said() -> list[str | None]:
        return [notes.read(run.path).verdict for run in (good, bad, other)]

    async with panel(slots(1), size=(80, 24)) as (pilot, screen):
        table = await at_the_runs(pilot, screen, 3)
        await pilot.press("K", "down", "D")
        await until(pilot, lambda: said() == ["keep", "discard", None])
        await until(pilot, lambda: re.search(r"✓★ +\w+ +good", shown(table)) is not None)
        assert "✓×" in shown(table)
        await pilot.press("M", "K")  # of the marked runs not all are kept
        await until(pilot, lambda: said() == ["keep", "keep", "keep"])
        await until(pilot, lambda: shown(table).count("✓★") == 3)
        await pilot.press("K")
        await until(pilot, lambda: said() == [None, None, None])
        await pilot.press("escape", "home", "D", "slash", *"verdict:discard", "enter")
        await until(pilot, lambda: table.keys == [good.id])


LINE = RunLine(Run(Path("3f2a")), "bytes-gpt", "ddp", 2, "running", True, 1.0, step=1240,
               total=5862, loss=1.832, history=(3.0, 2.0), samples_per_s=12400.0,
               seconds_left=252.0, preset="bytes-gpt", tags=("lr",), seconds=99.0)


async def test_of_many_runs_only_those_in_sight_are_built_and_only_live_ones_asked_about(
        monkeypatch):
    made, asked, real = [], [], rows_of_runs.run_line
    monkeypatch.setattr(rows_of_runs, "run_line",
                        lambda line, *more: made.append(line.id) or real(line, *more))
    monkeypatch.setattr(runs_pane, "_look_at", lambda runs: asked.extend(r.id for r in runs))
    monkeypatch.setattr(runs_pane, "_LOOK", 0.05)
    many = tuple(replace(LINE, run=Run(Path(f"r{i}")), live=i == 0, ended=1.0,
                         state="completed" if i else "running") for i in range(3000))
    monkeypatch.setattr(RunsFeed, "refresh", lambda self: (many, 0))
    async with panel(slots(1), size=(80, 24)) as (pilot, screen):
        table = await at_the_runs(pilot, screen, 3000)
        await until(pilot, lambda: "r5" in made and asked)
        assert set(made) <= {f"r{i}" for i in range(pilot.app.size.height)}
        assert set(asked) == {"r0"}
        monkeypatch.setattr(RunsPane, "build", lambda *_: pytest.fail("builds all anew"))
        made.clear()
        table.show(many)  # as they were: only their ages are drawn again
        await until(pilot, lambda: "r5" in made)
        await pilot.press("end")
        await until(pilot, lambda: "r2999" in made)
        monkeypatch.undo()
        monkeypatch.setattr(RunsFeed, "refresh", lambda self: (many, 0))
        table.go_to("r7")  # it was listed before it is asked for
        await until(pilot, lambda: table.key_at_cursor == "r7")


def test_in_the_column_of_a_key_numbers_come_before_texts_and_no_number_last():
    lines = [replace(LINE, name=text, settings={"train.lr": text} if text else {})
             for text in ("", "nan", "auto", "10", "1e-3", "2.0")]
    for turned, wanted in ((False, ["1e-3", "2.0", "10", "auto"]),
                           (True, ["auto", "10", "2.0", "1e-3"])):
        found = [line.name for line in in_order(lines, "train.lr", turned)]
        assert found[:4] == wanted


@pytest.mark.parametrize("width", [60, 72, 76, 90, 116, 156, 216])
@pytest.mark.parametrize("chosen", [DEFAULT, tuple(COLUMNS), ("run", "note", "task"),
                                    (*DEFAULT, "train.lr", "task.command")])
def test_columns_fit_and_end_stays_legible(width, chosen):
    lines = [LINE, replace(LINE, note="n" * 60, task="a.module:" + "T" * 40, name="n" * 50,
                           settings={"train.lr": "0.1", "task.command": "w" * 200})]
    columns = layout(lines, width, chosen, marks=True)
    used = sum(w + 2 for w in columns.sizes.values()) + 2
    assert used + columns.room == width
    assert columns.room >= 14
    for line in lines:
        row = "".join(text for text, _ in run_line(line, columns))
        assert row[used:] == "04:12 left".rjust(columns.room)
    head = "".join(text for text, _ in head_line(columns, "loss", turned=False))
    assert len(head) == used


def test_a_failing_run_says_why_in_full():
    why = "rank 2: CUDA out of memory. Tried to allocate 2.00 GiB"
    failed = replace(LINE, state="failed", live=False, ended=1.0, reason=why)
    narrow, wide = (run_row(failed, layout([failed], width)) for width in (76, 216))
    assert len(narrow.lines) == 2
    assert "".join(text for text, _ in narrow.lines[1]) == f"  └ {why}"
    assert len(wide.lines) == 1
    assert why in "".join(text for text, _ in wide.lines[0])


def test_a_completed_run_of_which_something_is_told_is_amber():
    fine = replace(LINE, state="completed", live=False, ended=2.0)
    told = replace(fine, warnings=("the loss was not finite", "another"))
    shape = layout([told], 210)
    tones = [{text.strip(): style for text, style in run_row(line, shape).lines[0]}
             for line in (fine, told)]
    assert [one["✓"] for one in tones] == ["good", "warn"]
    assert tones[1]["! the loss was not finite (and 1 more)"] == "warn"
    assert not any("!" in text for text in tones[0])
    failed = replace(told, state="failed", reason="rank 0: boom")
    row = run_row(failed, shape).lines[0]
    assert not any("!" in text for text, _ in row)  # its reason comes first


def test_the_best_value_has_its_name_and_a_column_that_stays_where_runs_are_sorted_by_it():
    by = By("eval:accuracy", largest=True)
    lines = [replace(LINE, name=f"{value}", best=value, by=by) for value in (0.5, 0.75, None)]
    told = "".join(part for part, _ in head_line(layout(lines, 156), None, turned=False))
    assert "best accuracy" in told
    assert "best" not in layout(lines, 69).sizes
    assert "best" in layout(lines, 69, by="best").sizes
    mixed = [*lines, replace(LINE, name="loss", best=0.1, by=By())]
    rows = ["".join(part for part, _ in run_line(line, layout(mixed, 216))) for line in mixed]
    assert "0.750 accuracy" in rows[1]
    assert "0.100 loss" in rows[3]
    assert layout(mixed, 104, by="best").sizes["best"] == 9 + len("accuracy")
    assert [line.name for line in in_order(mixed, "best", False)] == ["0.75", "0.5", "loss", "None"]


def test_a_name_is_whole_before_a_curve_is_long_and_that_of_a_member_is_what_differs():
    named = replace(LINE, name="n" * 20)
    sizes = layout([named], 69).sizes
    assert (sizes["name"], sizes["curve"]) == (16, 8)
    assert layout([replace(LINE, name="short")], 69).sizes["curve"] > 10
    member = replace(LINE, name="vgg lr=.1 #2",
                     sweep=Member("s1", "vgg", 1, 4, 0.0, {"train.lr": ".1"}, 2))
    row = "".join(part for part, _ in run_line(member, layout([member], 116)))
    assert "3f2a    lr=.1 #2 " in row


async def test_a_warning_is_told_once_and_an_empty_list_says_what_one_can_do(monkeypatch):
    told = replace(LINE, warnings=("reads its loss",), name="toy")
    lines = [replace(told, run=Run(Path(f"r{i}")), sweep=place) for i, place in enumerate(
        (None, None, Member("s1", "grid", 1, 1, 0.0, {}), None))]
    other = replace(told, run=Run(Path("r4")), warnings=("another",))
    found = [()]
    monkeypatch.setattr(RunsFeed, "refresh", lambda self: (found[0], 0))
    async with panel(slots(1), size=(80, 24)) as (pilot, screen):
        await until(pilot, lambda: screen.runs.lines is not None)
        said, readme = shown(screen.runs), (Path(__file__).parents[4] / "README.md").read_text()
        assert len(runs_pane.FIRST) == 3
        for command, does in runs_pane.FIRST:
            assert command in readme
            assert f"{command:<38}  {does}" in said
        found[0] = (*lines, other)
        table = await at_the_runs(pilot, screen, 5)
        await until(pilot, lambda: "! another" in shown(table))
        assert shown(table).count("! reads its loss") == 1
        assert len(re.findall("toy !|grid !", shown(table))) == 5
        table.show([lines[2]])  # it is told at the first that is there
        await until(pilot, lambda: "└ ! reads its loss" in shown(table))


def test_tags_typed_for_several_runs_are_added_and_those_of_one_replaced():
    before = Notes(tags=("old", "kept"))
    several = TagsDialog(["a", "b"], None, ()).change("lr -old -never")
    assert set(several(before).tags) == {"kept", "lr"}
    assert TagsDialog(["a"], ("old", "kept"), ()).change("lr, kept")(before).tags == ("lr", "kept")


def test_runs_without_a_value_come_last_in_any_order():
    lines = [replace(LINE, run=Run(Path(str(i))), loss=loss)
             for i, loss in enumerate((None, 2.0, float("nan"), 1.0))]
    assert [line.id for line in in_order(lines, "loss", False)] == ["3", "1", "0", "2"]
    assert [line.id for line in in_order(lines, "loss", True)] == ["1", "3", "0", "2"]
    assert [line.id for line in in_order(lines, "step", False)] == ["0", "1", "2", "3"]
    assert [line.id for line in in_order(lines, None, True)] == ["3", "2", "1", "0"]


async def test_a_run_that_can_not_be_read_is_removed_alone_not_with_others():
    good, closed = (RunLine(ended(name), name, "", 1, state, False, 0.0)
                    for name, state in (("good", "completed"), ("closed", "unreadable")))
    asked = []

    async def ask(question):
        asked.append(str(vars(question)))
        return False

    for lines in ([good, closed], [closed]):
        await several.ask_and_remove(SimpleNamespace(push_screen_wait=ask), lines)
    assert closed.id not in asked[0]
    assert "1 of the 2 marked runs stay" in asked[0]
    assert f"Remove run {closed.id}" in asked[1]
