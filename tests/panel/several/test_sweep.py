"""A sweep in the panel: one line in the list, its table, and from there its runs."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_engine.runs.digest import By
from gpu_engine.runs.folder import Run
from gpu_engine.runs.sweep import Member, read
from gpu_engine.sweep import group as sweeps
from gpu_engine.sweep import study
from gpu_engine.sweep.table import assigned, points
from gpu_panel.charts.curves import CurveView
from gpu_panel.common.dialogs import Confirm
from gpu_panel.common.key_bar import KeyBar
from gpu_panel.common.rows import cells
from gpu_panel.launch.run_line import RunLine, fold, layout, sweep_row
from gpu_panel.run.screen import RunScreen
from gpu_panel.several import table as tables
from gpu_panel.several.curves import CurvesPane, ValuesChart, axis
from gpu_panel.several.screen import SeveralPane, SeveralScreen

from ... import event_lines
from ...conftest import slots
from ...sweep.made import ended, nobody_starts, submitted
from ...sweep.test_table import one
from ..launch.runs.test_pane import at_the_runs
from ..panel_kit import GOLDENS, on_top, panel, picture, says, screen_text, shown, until


async def test_from_the_list_to_the_table_and_to_runs(monkeypatch):
    nobody_starts(monkeypatch)
    made = submitted("train.lr=1e-3,3e-4", repeat=2)
    first, second, bad, _ = made.runs
    ended(first, [2.0, 1.0], evaluation={"accuracy": 0.5})
    ended(second, [2.0, 0.5], evaluation={"accuracy": 0.7})
    ended(bad, [3.0], "boom")
    async with panel(slots(1), size=(80, 24)) as (pilot, screen):
        listed = await at_the_runs(pilot, screen, 4)
        await until(pilot, lambda: "best loss 0.500" in shown(listed))
        assert f"▸   {made.id}  toy  ▁▇✗◌  best loss 0.500 · lr=1e-3 · 2 of 4 done" in shown(listed)
        assert listed.keys == [made.id]
        await pilot.press("right")
        assert listed.keys == [made.id, *(run.id for run in made.runs)]
        await pilot.press("down", "down", "left")  # folds it from one of its runs too
        assert (listed.keys, listed.cursor) == ([made.id], 0)
        assert {line.id for line in listed.targets} == {run.id for run in made.runs}
        assert "u resume" not in screen_text(pilot.app).splitlines()[-1]
        await pilot.press("s")
        await on_top(pilot, Confirm)
        assert f"Stop sweep {made.id}" in screen_text(pilot.app)
        await pilot.press("escape", "m")
        assert listed.marked == {run.id for run in made.runs}
        await pilot.press("m", "enter")
        await on_top(pilot, SeveralScreen)
        table = pilot.app.screen.query_one(SeveralPane)
        await until(pilot, lambda: "boom" in shown(table))
        assert "1e-3  2 done               0.750 ± 0.354 (2)" in shown(table)
        assert len(pilot.app.screen.query_one(KeyBar).shown) <= 8
        await pilot.press("home", "enter", "c")
        assert table.keys == ["point 1", first.id, second.id, "point 3"]
        await on_top(pilot, SeveralScreen)
        assert [one.run.id for one in pilot.app.screen.store.runs] == [first.id, second.id]
        await pilot.press("escape", "down", "c")  # of one run: the best of all
        await until(pilot, lambda: isinstance(pilot.app.screen, SeveralScreen)
                    and len(pilot.app.screen.store.runs) == 4)
        await pilot.press("escape")
        await on_top(pilot, SeveralScreen)
        await pilot.press("b")
        await pilot.press(*"accuracy")
        await says(pilot, "eval:accuracy")
        await pilot.press("enter")
        await until(pilot, lambda: "best eval:accuracy" in shown(table))
        await pilot.press("O")
        assert table.store.by.text == "max:eval:accuracy"
        await pilot.press("u")
        await on_top(pilot, Confirm)
        await pilot.press("y")
        await until(pilot, lambda: "2 waiting" in shown(table))
        assert table.store.by.text == "max:eval:accuracy"  # what a person has chosen stays
        assert (bad.state().state, bad.state().attempt) == ("queued", 2)
        await pilot.press("home", "down", "enter")
        await on_top(pilot, RunScreen)
        assert pilot.app.screen.run_folder.id == first.id
        await pilot.press("escape", "s")
        await on_top(pilot, Confirm)
        await pilot.press("y")
        await until(pilot, lambda: "2 of 4 done, 2 stopped" in str(table.border_title))
        await pilot.press("u")  # none has failed
        await on_top(pilot, Confirm)
        assert "2 runs that were stopped" in screen_text(pilot.app)
        await pilot.press("y")
        await until(pilot, lambda: "2 of 4 done, 2 waiting" in str(table.border_title))
        await pilot.press("escape")
        await on_top(pilot, screen)


async def test_a_picture_of_its_table(monkeypatch):
    nobody_starts(monkeypatch)
    ids = itertools.count(0x3f2a)
    with monkeypatch.context() as patch:
        patch.setattr(sweeps.os, "urandom", lambda size: next(ids).to_bytes(2, "big")[-size:])
        made = submitted("train.lr=1e-3,3e-4,1e-4", "batch.size=64,128", repeat=2)
    for at, run in enumerate(made.runs[:9]):
        best = 2.1 - 0.1 * (at // 2) + 0.02 * (at % 2)
        ended(run, [3.0, 2.5, best], "CUDA out of memory" if at == 3 else None,
              evaluation=None if at == 3 else {"accuracy": 0.41 + 0.03 * (at // 2)})
    async with panel(slots(1), size=(100, 24)) as (pilot, screen):
        await at_the_runs(pilot, screen, 12)
        await pilot.press("enter")
        await on_top(pilot, SeveralScreen)
        table = pilot.app.screen.query_one(SeveralPane)
        await until(pilot, lambda: "out of memory" in shown(table))
        await picture("sweep", pilot.app, GOLDENS)


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_a_search_shows_the_best_so_far_and_asks_what_matters_only_by_a_key(
        monkeypatch, size):
    nobody_starts(monkeypatch)
    made = submitted("train.lr=log:1e-5..1e-1", "batch.size=32..128:32", tries=12)
    losses = [3.0, 2.0, 2.5, None, 1.0, *[1.5] * 6]
    for run, loss in zip(made.runs, losses, strict=False):
        ended(run, [4.0] if loss is None else [4.0, loss], "boom" if loss is None else None)
    asked, best = list[dict](), read(made.runs[4].path)
    monkeypatch.setattr(study, "ask", lambda *_, **more: asked.append(more) or {
        "matters": {"train.lr": 0.2, "batch.size": 0.8}})
    line = f"11 of 12 tried, best loss 1.000 at try 5 ({assigned(best.values)})"
    found = sweeps.find(made.id)
    assert line in study.so_far(found, sweeps.read(found)).lines()  # as the command prints it
    async with panel(slots(1), size=size, notifications=True) as (pilot, _):
        await pilot.app.push_screen(shows := SeveralScreen(sweep=made.id))
        curves, values, table = map(shows.query_one, (CurvesPane, ValuesChart, SeveralPane))
        await until(pilot, lambda: [x.label for x in curves.lines] == ["best so far", "each try"])
        assert str(curves.border_title) == line
        steps, each = led_to(curves).values()
        assert list(dict.fromkeys(steps)) == [3.0, 2.0, 1.0]
        assert each == [loss for loss in losses if loss is not None]  # what failed has none
        assert "best loss by lr" in str(values.border_title)
        await pilot.press("end", *"jjjjj")  # the text below the table
        await until(pilot, lambda: line in shown(table))
        assert asked == []
        await pilot.press("w")
        await until(pilot, lambda: "after 10 tries): lr 20 %, size 80 %" in shown(table))
        assert len(asked) == 1
        await until(pilot, lambda: "best loss by size" in str(values.border_title))
        await pilot.press("1", "left", "left")  # the crosshair goes from try to try
        assert curves.reading()[0] == "try 11"
        assert [row.split()[-1] for row in curves.reading()[-2:]] == ["1.500", "1.000"]
        await pilot.press("c", *"loss")
        await pilot.press("enter")
        await until(pilot, lambda: len(curves.lines) == 11)  # all but the one that waits


def led_to(chart: CurveView) -> dict[str, list[float]]:
    return {line.label: [mean for _, _, mean, _ in line.series.buckets()] for line in chart.lines}


async def test_what_each_value_has_led_to_is_a_line_only_where_runs_are_done(monkeypatch):
    nobody_starts(monkeypatch)
    runs = submitted("train.lr=1e-3,3e-4,1e-4", "batch.size=64,128").runs
    ended(runs[0], [3.0, 2.0])
    ended(runs[1], [0.1], "boom")  # what is done counts more than what was better until it failed
    ended(runs[2], [3.0, 1.0])
    ended(runs[4], [0.5], "boom")
    async with panel(slots(1), size=(100, 30)) as (pilot, _):
        await pilot.app.push_screen(shows := SeveralScreen(sweep=read(runs[0].path).sweep))
        curves, values = map(shows.query_one, (CurvesPane, ValuesChart))
        await until(pilot, lambda: len(curves.lines) == 4)
        assert curves.lines[0].label == "lr=1e-3 size=64"
        assert led_to(values) == {"done": [1.0, 2.0], "as far as it got": [0.5]}
        assert [line.loose for line in values.lines] == [False, True]
        assert curves._chosen == 1  # the first line of the table
        await pilot.press("down")
        await until(pilot, lambda: curves._chosen == 4)  # the run under the cursor
        await pilot.press("3")
        assert shows.query_one(SeveralPane).has_focus
        assert not shows.check_action("pane", ("differences",))
        drawn = shown(shows.query_one(SeveralPane))
        assert "━━ 1e-4  64" in drawn
        assert "   1e-4  128" in drawn  # it waits, and has no curve
        await pilot.press("y")
        assert pilot.app.clipboard.startswith("| lr | size | runs | best loss |")
        ended(runs[5], [0.25])
        await until(pilot, lambda: led_to(values) == {"done": [0.25, 1.0, 2.0]})


async def test_of_runs_without_steps_the_chart_of_values_takes_the_whole_width(monkeypatch):
    nobody_starts(monkeypatch)
    made = submitted("train.lr=1e-3,3e-4", run={"best": "bpb"})
    for run, bpb in zip(made.runs, (2.0, 1.0), strict=True):
        ended(run, [])
        event_lines.append(run.events(0), event_lines.line("metric", {"step": None, "bpb": bpb}))
    async with panel(slots(1), size=(100, 30)) as (pilot, _):
        await pilot.app.push_screen(SeveralScreen(sweep=made.id))
        values = pilot.app.screen.query_one(ValuesChart)
        await until(pilot, lambda: values.size.width > 90)
        assert "best bpb by lr ─ 1.000 at 3e-4" in screen_text(pilot.app)
        # All have ended; it is looked at again when one comes back from a run's own screen.
        await pilot.press("enter")
        await on_top(pilot, RunScreen)
        event_lines.append(made.runs[0].events(0),
                           event_lines.line("metric", {"step": None, "bpb": 0.5}))
        await pilot.press("escape")
        await says(pilot, "best bpb by lr ─ 0.500 at 1e-3")


# --- A sweep's line in the list, and its table as rows, for any width ---


async def test_the_line_of_a_sweep_names_the_best_by_its_own_value(monkeypatch):
    nobody_starts(monkeypatch)
    made = submitted("train.lr=1e-3,3e-4", run={"best": "max:accuracy"})
    for run, losses, accuracy in zip(made.runs, ([0.1], [2.0]), (0.25, 0.75), strict=True):
        ended(run, losses, evaluation={"accuracy": accuracy})
    async with panel(slots(1), size=(160, 48)) as (pilot, screen):
        listed = await at_the_runs(pilot, screen, 2)
        await until(pilot, lambda: "best eval:accuracy 0.750 · lr=3e-4" in shown(listed))


def text(line) -> str:
    return "".join(part for part, _ in line).rstrip()


def run(ident, state="completed", index=None, best=None):
    place = None if index is None else Member("s72d4", "vgg", index, 4, 0.0,
                                              {"train.lr": f"1e-{index}"})
    return RunLine(Run(Path(ident)), f"vgg {ident}", "single", 1, state, state in (
        "running", "queued"), time.time(), sweep=place, best=best, by=By())


LIST = [run("a1", "running", 2), run("b1"), run("a2", "failed", 1, 0.1), run("a3", "queued", 4),
        run("a4", "completed", 3, 0.5)]


def test_a_sweep_is_one_line_where_its_first_run_would_be():
    folded = fold(LIST, ())
    assert [entry.id for entry in folded] == ["s72d4", "b1"]
    assert [e.id for e in fold(LIST, {"s72d4"})] == ["s72d4", "a2", "a1", "a4", "a3", "b1"]
    for width, head in ((76, "▸   "), (150, "▸ sweep       ")):
        row = sweep_row(folded[0], layout(LIST, width), (), False)
        assert text(row.lines[0]) == f"{head}s72d4  vgg  ✗●▇◌  best loss 0.500 · lr=1e-3 · " \
            "1 of 4 done · 1 running · 1 waiting · 1 failed"
    some = fold(LIST[:3], {"s72d4"})[0]
    marked = sweep_row(some, layout(LIST, 116, marks=True), {"a1", "a2"}, True)
    assert text(marked.lines[0]) == \
        "▣ ▾ sweep       s72d4  vgg  ✗●  2 of its 4 runs match · 1 running · 1 failed"



MEMBERS = [one(1, "1e-3", least=0.5, repeat=1), one(2, "1e-3", least=0.7, repeat=2),
           one(3, "3e-4", "failed", least=0.2, repeat=1, why="rank 0: boom"),
           one(4, "3e-4", "queued", repeat=2)]


def built(members, keys, width, *unfolded):
    return tables.of_sweep(points(members, By()), keys, By(), {}, unfolded=unfolded).build(width)


@pytest.mark.parametrize("width", [56, 76, 116])
def test_the_table_fits_and_keeps_values_and_the_best(width):
    found = points(MEMBERS, By())
    head, rows = built(MEMBERS, ["train.lr"], width, "point 1", "point 3")
    drawn = [text(head), *(text(line) for row in rows for line in row.lines)]
    assert [row.key for row in rows] == ["point 3", "0003", "0004", "point 1", "0001", "0002"]
    assert max(cells(line.removesuffix("  rank 0: boom")) for line in drawn) <= width
    assert drawn[0].split()[:4] == ["lr", "runs", "best", "loss"]
    assert drawn[1].split()[:7] == ["▾", "3e-4", "1", "waiting,", "1", "failed", "~0.200"]
    assert drawn[2].split()[:5] == ["└", "#1", "0003", "✗", "failed"]
    assert drawn[2].endswith("  rank 0: boom")
    assert drawn[5].split()[:5] == ["└", "#1", "0001", "✓", "done"]
    assert ("time" in drawn[0], "steps" in drawn[0]) == (width > 100, width > 70)
    assert next(t for row in tables.below(found, By(), 0, width) if (t := text(row.lines[0]))) == \
        "1 failed (0003): rank 0: boom"


def test_a_point_with_one_run_is_that_run():
    single = [replace(m, repeat=None, values={"train.lr": str(m.index)}) for m in MEMBERS]
    _head, rows = built(single, ["train.lr"], 100)
    assert [row.key for row in rows] == ["0003", "0001", "0002", "0004"]
    assert text(rows[0].lines[0]).split() == [
        "3", "0003", "✗", "failed", "~0.200", "0.200", "20", "00:10", "–", "rank",
        "0:", "boom"]
    assert tables.below(points(single, By()), By(), 0, 76)[1:] == tables.below(
        points(single, By()), By(), 0, 76)[-1:]  # no failure is told twice
    only = built([replace(m, values={}) for m in MEMBERS], [], 76, "point 1")[1]
    assert [row.key for row in only] == ["point 1", "0001", "0002", "0003", "0004"]
    assert tables.markdown(points(MEMBERS, By()), ["train.lr"], By())[2:] == [
        "| 3e-4 | 1 waiting, 1 failed | ~0.200 | 0.200 | 20 | 00:10 | – |",
        "| 1e-3 | 2 done | 0.600 ± 0.141 (2) | 0.600 ± 0.141 (2) | 20 | 00:10 | – |"]


@pytest.mark.parametrize(("texts", "places"), [
    (["1e-3", "1e-1", "1e-2"], [0, 2000, 1000]), (["1", "2", "4"], [0, 333, 1000]),
    (["0.5"], [0]), (["adam", "sgd"], [0, 1000]), (["0", "1e3"], [0, 1000]),
    (["nan", "1"], [0, 1000])])
def test_values_stand_on_their_axis_at_their_distance(texts, places):
    found, axes = axis(texts)
    assert found == places
    assert [axes.x_text(x) for x in found] == texts
    assert axes.x_ticks(0, 5000, 9) == sorted(map(float, places))
    assert len(axes.x_ticks(0, 5000, 1)) == 1
