"""The run screen on runs written by hand, some of them while it watches."""

from __future__ import annotations

import threading

import pytest

from gpu_engine.runs.folder import Cause
from gpu_panel.charts.curves import CurveView
from gpu_panel.commands.own import OutputScreen
from gpu_panel.run.log import LogView
from gpu_panel.run.ranks import RanksPane
from gpu_panel.run.screen import RunScreen
from gpu_panel.run.store import RunStore

from ..run_kit import (
    SMALL,
    T0,
    WIDE,
    Mini,
    Written,
    on_top,
    press,
    reached,
    said,
    says,
    screen_text,
    settled,
    shown,
    trained,
    until,
    watched,
)


async def test_a_run_that_cannot_be_looked_at_is_opened(tmp_path, monkeypatch):
    """On a disk that hangs."""
    answers = threading.Event()
    look = RunStore._poll
    monkeypatch.setattr(RunStore, "_poll", lambda self: (answers.wait(), look(self))[1])
    app = Mini(trained(tmp_path).run, at=52)
    try:
        async with app.run_test(size=WIDE) as pilot:
            await says(pilot, "loss")
            assert app.run_screen.store.state is None
            answers.set()
            await until(pilot, lambda: "step 99 of 400" in said(app))
    finally:
        answers.set()


async def test_it_grows_while_one_watches(tmp_path):
    run = Written(tmp_path)
    async with watched(run, at=12.0) as (pilot, app):
        assert "waiting for ranks 0, 1 · 00:12 since it started" in said(app)
        assert "no step yet" in screen_text(app)
        run.start(0)
        await settled(pilot, lambda s: s.ranks and s.ranks[0].beat is not None)
        assert "waiting for rank 1" in said(app)
        run.start(1)
        for rank in (0, 1):
            run.steps(rank, 0, 19, at=11.0)
        await settled(pilot, reached(1, 19))
        text = said(app)
        assert "waiting" not in text
        assert "step 19 of 400" in text
        run.log(0, b"a new line\n")
        await shown(pilot)
        assert "a new line" in screen_text(app)


@pytest.mark.parametrize("size", [WIDE, (40, 12), (20, 6), (250, 70)])
async def test_every_size(tmp_path, size):
    run = trained(tmp_path)
    async with watched(run, size=size) as (pilot, app):
        for key in ("1", "2", "3", "4", "l", "m", "m", "left", "plus"):
            await press(pilot, key)
        assert "3f2a" in screen_text(app)


async def test_the_log_of_another_rank(tmp_path):
    run = trained(tmp_path)
    run.run.path.joinpath("supervisor.log").write_text("supervising\n")
    async with watched(run) as (pilot, app):
        await press(pilot, "r")
        assert "rank 1 says 49" in screen_text(app)
        assert app.run_screen.query_one(RanksPane).chosen == 1
        await press(pilot, "right_square_bracket")
        assert "supervising" in screen_text(app)
        await press(pilot, "left_square_bracket", "left_square_bracket")
        assert "rank 0 says 49" in screen_text(app)


async def test_keys_type_into_the_search(tmp_path):
    run = trained(tmp_path)
    async with watched(run) as (pilot, app):
        await pilot.press("slash", *"slrmy1 7", "backspace", "backspace")
        field = app.run_screen.query_one("#find")
        assert field.value == "slrmy1"
        assert isinstance(app.screen, RunScreen)  # s has opened no question
        await pilot.press("escape")
        assert not field.display
        assert app.run_screen.query_one(LogView).needle == ""
        await pilot.press("slash", *"SAYS 7".lower(), "enter")
        await shown(pilot)
        await pilot.press("y")
        assert app.clipboard == "rank 0 says 7"


async def test_the_loss_of_another_optimizer_can_be_drawn(tmp_path):
    run = Written(tmp_path, ranks=1)
    run.start(0)
    for step in range(1, 20):
        run.write(0, ("step", step, {
            "step": step, "n": 1, "losses": [2.0 / step],
            "others": {"1": {"name": "optimizer 1 (SGD)", "step": step, "n": 1,
                             "loss": 7.0 + step, "losses": [7.0 + step]}}}))
    run.write(0, ("step", 20, {"step": 19, "n": 0, "others": {
        "1": {"name": "optimizer 1 (SGD)", "step": 20, "n": 1, "losses": [30.0]}}}))
    async with watched(run, reached(0, 19), at=21) as (pilot, app):
        screen = app.run_screen
        await pilot.press("c", *"sgd", "enter")
        await says(pilot, "loss of optimizer 1 (SGD) ─ 30.0")
        assert screen.store.others[1].loss.ranks[0].hi[-1] == 30.0
        assert len(screen.store.loss.ranks[0].hi) == 19
        await pilot.press("1", "c", *"loss", "enter")
        await says(pilot, "loss ─ 0.105")


async def test_trainings_one_after_the_other_and_processes_of_one_rank_are_told_apart(tmp_path):
    run = Written(tmp_path, ranks=1, mode="single")
    run.start(0)
    run.write(0, ("metric", 1, {"step": 0, "val/accuracy": 0.625}))
    for step in range(1, 31):
        if step in (11, 21):
            run.write(0, ("training", step, {"number": 1 + step // 10, "name": "LBFGS",
                                             "optimizer": 0, "step": step - 1}))
        run.write(0, ("step", step, {"step": step, "n": 1, "losses": [2.0 / step]}))
    run.write(1, ("start", 2, {"rank": 1, "as_rank": 0, "process": 2, "pid": 7, "world_size": 1,
                               "device": ["CPU 0"], "attempt": 1}),
              ("step", 20, {"step": 4, "n": 4, "losses": [5.0, 4.0, 4.0, 4.5]}))
    async with watched(run, reached(0, 30), at=31) as (_pilot, app):
        text = screen_text(app)
        assert "step 30 of 400 · 3 trainings" in text
        assert "training 3, LBFGS" in text
        assert "2 processes train as rank 0" in text
        assert "val/accuracy 0.625" in text
        assert "0.2" in text
        view = app.run_screen.query_one("#loss", CurveView)
        assert [m.x for m in view.marks] == [10, 20]


# --- Which panes are on the screen: all from 100 × 30 on, one alone, none without figures ---


def on_screen(app: Mini) -> set[str]:
    return {pane.NAME for pane in app.run_screen._panes() if pane.is_on_screen and pane.size.area}


ALL = {pane.NAME for pane in RunScreen.PANES}


async def test_all_panes_from_100_by_30_on_and_any_of_them_alone(tmp_path):
    run = trained(tmp_path, ranks=8)
    for rank in range(2, 8):
        run.start(rank)
        run.steps(rank, 0, 99)
    async with watched(run, reached(7, 99), at=50.5, size=(100, 30)) as (pilot, app):
        screen = app.run_screen
        assert on_screen(app) == ALL
        assert screen.pane("loss").size.height >= 5
        assert screen.query_one(LogView).size.height >= 5
        assert "rank 0 says 49" in screen_text(app)
        for key, name in (("4", "log"), ("3", "ranks"), ("1", "loss"), ("2", "memory")):
            await press(pilot, key, "z")
            assert on_screen(app) == {name}
            assert screen.pane(name).outer_size.height >= 26
            assert screen.pane(name).has_focus_within
            await press(pilot, "z")
            assert on_screen(app) == ALL
            assert screen.pane(name).has_focus_within
        await press(pilot, "4", "z", "3")  # another one, alone too
        assert on_screen(app) == {"ranks"}
        await press(pilot, "escape")
        assert on_screen(app) == ALL
        assert isinstance(app.screen, RunScreen)
        await pilot.press("escape")
        await pilot.pause()
        assert not isinstance(app.screen, RunScreen)
    async with watched(run, reached(7, 99), at=50.5, size=SMALL) as (pilot, app):
        assert on_screen(app) == {"loss", "memory"}
        assert app.run_screen.pane("memory").region.y > app.run_screen.pane("loss").region.y
        await press(pilot, "3")
        assert on_screen(app) == {"ranks"}
        await press(pilot, "1", "z")
        assert on_screen(app) == {"loss"}
        assert app.run_screen.pane("loss").outer_size.height == SMALL[1] - 2
    async with watched(run, reached(7, 99), at=50.5, size=(120, 19)) as (_pilot, app):
        assert on_screen(app) == {"loss"}


async def test_a_command_without_figures_shows_its_log_first(tmp_path):
    run = Written(tmp_path, ranks=1, mode="single",
                  plan={"spec": {"task": {"command": ["python", "x.py"]}}})
    run.log(0, b"the script speaks\n")
    async with watched(run, at=5, size=SMALL) as (pilot, app):
        await says(pilot, "the script speaks")
        await press(pilot, "1")
        assert "no step yet" in screen_text(app)


async def test_of_a_run_that_has_failed_what_is_empty_is_folded(tmp_path):
    run = Written(tmp_path, cpu=True)
    for rank in (0, 1):
        run.start(rank)
    run.state("running")
    async with watched(run, at=5) as (pilot, app):
        assert on_screen(app) == ALL  # something may come
        run.state("failed", ended=T0 + 5, cause=Cause("boom " * 50, 1, "E", "Traceback\nE: boom"))
        await settled(pilot, lambda s: not s.state.live)
        await press(pilot, "4")
        assert on_screen(app) == {"ranks", "log"}
        assert app.run_screen.query_one(LogView).size.height > 25
        run.write(0, ("memory", 4, {"gpu_allocated": [], "gpu_reserved": [], "gpu_peak": [],
                                    "gpu_process": None, "rss": 1 << 30}))
        await settled(pilot, lambda s: s.memory.rss)
        assert on_screen(app) == {"memory", "ranks", "log"}
        assert app.run_screen.pane("memory").outer_size.width == WIDE[0]
    run.steps(0, 0, 9, cpu=True)
    async with watched(run, at=5, size=SMALL) as (pilot, app):
        assert on_screen(app) == {"log"}
        app.run_screen = RunScreen(run.run, store=app.run_screen.store)  # as from a preview
        await app.push_screen(app.run_screen)
        await settled(pilot)
        assert on_screen(app) == {"log"}
        await press(pilot, "2")
        assert on_screen(app) == {"memory"}  # below so many lines there is no room for both


async def test_keys_show_what_commands_print(tmp_path):
    async with watched(trained(tmp_path)) as (pilot, _app):
        for key, words in (("C", "code 3f2a"), ("T", "trace 3f2a"),
                           ("U", "usage --by run")):
            await pilot.press(key)
            await on_top(pilot, OutputScreen)
            await says(pilot, f"$ gpu-engine {words}")
            await says(pilot, "esc close")
            await pilot.press("escape")
            await on_top(pilot, RunScreen)
