"""The compare screen: curves over each other, figures, differences, in every size."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_engine.common.series import Series
from gpu_engine.events import schema
from gpu_engine.places.verbs import prepare
from gpu_engine.runs import environment
from gpu_engine.runs.create import reopen_run
from gpu_engine.runs.environment import Environment
from gpu_engine.runs.folder import AttemptRecord, Run, State
from gpu_engine.spec.read import from_dict, read_toml
from gpu_engine.spec.write import to_toml
from gpu_panel.common.key_bar import KeyBar
from gpu_panel.run.screen import RunScreen
from gpu_panel.several.curves import CurvesPane
from gpu_panel.several.screen import DifferencesPane, SeveralScreen
from gpu_panel.several.store import CURVED, Compared, SeveralStore
from gpu_panel.theme import ThemedApp

from ... import event_lines
from ...conftest import slots
from ...export.kit import T0, Written
from ..panel_kit import GOLDENS, compare, on_top, picture, says, screen_text, shown, until


def begun(name: str, *, lr=0.01, ranks=2, steps=100, decay=30.0) -> Written:
    """A live run whose loss falls from 4 to 1."""
    run = Written(name, ranks, batch={"size": 32 * ranks}, train={"lr": lr, "steps": steps})
    for rank in range(ranks):
        run.start(rank)
        run.tell(rank, "schedule", t=0, total_steps=steps, steps_per_epoch=50, epochs=None,
                 examples=1437, dropped=0, batch=32 * ranks, first_step=0)
    train(run.run, ranks, 1, steps, decay)
    run.tell(0, "eval", t=60, step=steps, accuracy=1 - lr)
    environment.write(run.path, Environment(torch="2.13.0", commit=name[-1] * 40))
    return run


def written(name: str, **more) -> Run:
    """A run that has ended."""
    return begun(name, **more).end()


def train(run: Run, ranks: int, first: int, last: int, decay: float):
    for rank in range(ranks):
        event_lines.append(run.events(rank), *(event_lines.line("step", {
            "step": s, "n": 1, "epoch": 0, "losses": [1 + 3 * 2 ** (-s / decay)],
            "loss": 1 + 3 * 2 ** (-s / decay), "lr": 0.01, "samples_per_s": 500.0, "skipped": 0,
            "data_wait": 0.0}, t=T0 + s / 2) for s in range(first, last + 1)))


class Mini(ThemedApp):
    """An app with only the compare screen."""

    def __init__(self, runs: list[Run]):
        super().__init__()
        self.animation_level = "none"
        self.compared = SeveralScreen(runs)

    def on_mount(self):
        self.push_screen(self.compared)


async def read(pilot) -> SeveralScreen:
    """Wait until all has been read and painted."""
    screen = pilot.app.compared
    await until(pilot, lambda: screen.store.caught_up)
    await painted(pilot, screen)
    return screen


async def painted(pilot, screen: SeveralScreen):
    await until(pilot, lambda: screen._painted == (screen.store.version, screen._pointed))


def named(runs: list[Run], *names: str) -> list[Run]:
    """The runs under other ids, so that pictures of them stay the same."""
    return [Run(run.path.rename(run.path.with_name(name)))
            for run, name in zip(runs, names, strict=True)]


@pytest.mark.parametrize("size", [(80, 24), (120, 36)], ids=lambda s: str(s[0]))
async def test_golden_of_two_runs_side_by_side(size):
    runs = named([written("digits-a"), written("digits-b", lr=0.1, decay=10.0, ranks=1)],
                 "3f2a", "2c11")
    async with Mini(runs).run_test(size=size) as pilot:
        screen = await read(pilot)
        assert len(screen.query_one(KeyBar).shown) <= 8
        await compare(f"compare-{size[0]}", pilot.app)
        if size[0] == 120:
            await picture("compare", pilot.app, GOLDENS)
        await pilot.press("2")
        await until(pilot, lambda: screen.query_one("#several").has_focus)
        said = screen_text(pilot.app)
        assert "3f2a  digits-a  completed" in said
        assert "eval accuracy" in said
        await pilot.press("3")
        await until(pilot, lambda: screen.query_one(DifferencesPane).has_focus)
        table = screen.query_one(DifferencesPane)
        rows = [line.strip("│").replace("━━", "").split() for line in shown(table).splitlines()]
        assert rows[1:-1] == [["run", "name", "ids", "mode", "size", "lr", "commit"],
                              ["3f2a", "digits-a", "cpu:0,cpu:1", "ddp", "64", "0.01", "a" * 12],
                              ["2c11", "digits-b", "cpu:0", "single", "32", "0.1", "b" * 12]]
        await pilot.press("y")
        lines = pilot.app.clipboard.splitlines()
        assert lines[0] == "|  | 3f2a digits-a | 2c11 digits-b |"
        assert "| train.lr | 0.01 | 0.1 |" in lines


async def test_over_steps_and_time_and_another_value():
    wide, narrow = runs = [written("digits-a"), written("digits-b", ranks=1)]
    async with Mini(runs).run_test(size=(120, 36)) as pilot:
        screen = await read(pilot)
        pane = screen.query_one(CurvesPane)
        assert [x.series.last for x in pane.lines] == [100, 100]
        await pilot.press("x")
        assert [x.series.last for x in pane.lines] == [50_000, 50_000]
        assert "loss over time" in str(pane.border_title)
        await pilot.press("x", "l", "m", "left")
        assert pane.border_subtitle == "log · smooth 0.6"
        assert f"{wide.id} digits-a" in screen_text(pilot.app)  # at the reading line
        await pilot.press("plus", "x", "x")
        assert (pane.cross, pane.window) == (None, None)
        await pilot.press("c")
        await says(pilot, "learning rate")
        await pilot.press(*"accu")
        await until(pilot, lambda: "learning rate" not in screen_text(pilot.app))
        await pilot.press("enter")
        await until(pilot, lambda: screen.store.key == "eval:accuracy")
        await read(pilot)
        assert [x.series.at(100) for x in pane.lines] == [(0.99, 0.99, 0.99)] * 2
        assert not pane.log_scale
        assert "eval accuracy over steps" in str(pane.border_title)
        await pilot.press("2", "c")  # in a sweep's table it would compare
        await says(pilot, "learning rate")
        await pilot.press("escape")
        table = screen.query_one("#several")
        assert "none" in table.why_off("stop", ())
        assert not table.check_action("stop", ())
        assert not table.why_off("compare", ())  # so that its key does what the screen has for it
        await pilot.press("down", "enter")
        await on_top(pilot, RunScreen)
        assert pilot.app.screen.run_folder == narrow
        await pilot.press("escape")
        await on_top(pilot, screen)


async def test_what_a_resume_has_changed_is_read_again():
    run = written("digits", steps=20)
    one = Compared(run)
    await one.poll_now()
    spec = from_dict(read_toml(run.path / "spec.toml") | {"train": {"lr": 0.5, "steps": 20}})
    made = prepare(spec, inventory=slots(2))
    os.close(reopen_run(run, to_toml(made.spec), made.plan))
    await one.poll_now()
    assert one.facts.settings["train.lr"] == "0.5"


async def test_nine_runs_one_of_them_live_and_one_without_settings():
    others = [written(f"digits-{i}", steps=20) for i in range(1, 9)]
    (others[0].path / "spec.toml").unlink()
    with begun("digits-0", steps=200) as made:
        live = made.run
        async with Mini([live, *others]).run_test(size=(80, 24)) as pilot:
            screen = await read(pilot)
            assert [x.series.last for x in screen.query_one(CurvesPane).lines] == [200] + [20] * 8
            train(live, 2, 201, 300, 30.0)
            await until(pilot, lambda: screen.store.runs[0].curve("loss").last == 300)
            await painted(pilot, screen)
            await pilot.press("3")
            table = screen.query_one(DifferencesPane)
            await until(pilot, lambda: table.has_focus)
            assert f"{others[0].id}: its settings can't be read" in screen_text(pilot.app)
            assert "run   name      steps  torch" in shown(table)
            assert others[7].id not in shown(table)
            await pilot.press("right", "end")
            assert "run   name      torch" in shown(table)
            assert others[7].id in shown(table)
            await pilot.press(*["right"] * 9, "left")
            assert shown(table).splitlines()[1].strip("│").split() == [
                "run", "name", "torch", "commit", "←"]  # one column is left of what is shown
            await pilot.press("2")
            # The cursor is on the same run in both tables, and that run is on top in the chart.
            assert screen.query_one("#several").key_at_cursor == others[7].id
            assert screen.query_one(CurvesPane)._chosen == 8
            await pilot.press("home")
            await until(pilot, lambda: f"{live.id} digits-0 running"
                        in " ".join(screen_text(pilot.app).split()))


# --- A run's curve over steps and time, compared with figures worked out by hand ---


def at(event, t):
    """An event that happened at `t`, Unix seconds."""
    object.__setattr__(event, "t", t)
    return event


def start(attempt, t):
    return at(schema.Start(0, 0, 0, 1, None, 2, attempt=attempt), t)


def steps(last, losses, t, **more):
    return at(schema.Step(last, 0.1, 0, n=len(losses), losses=tuple(losses),
                          loss=sum(losses) / len(losses), **more), t)


def points(series: Series) -> dict[int, float]:
    """The mean of each bucket by its first x."""
    return {x // series.stride * series.stride: mean for x, _, mean, _ in series.buckets()}


def told(*attempts: tuple[float, float], **ranks) -> Compared:
    """A run with these attempts, whose ranks have told these events."""
    run = Compared(Run(Path("/nowhere/3f2a")))
    run.clock.learn(State("completed", "3f2a", "x", 100.0, started=100.0, attempts=tuple(
        AttemptRecord(i, *when, "stopped") for i, when in enumerate(attempts or [(100.0, 200.0)],
                                                                   1))))
    for rank, events in ranks.items():  # one file after the other, as they may be read
        run.fold([(int(rank[1:]), events)])
    run.version += 1
    return run


def test_the_mean_of_the_ranks_over_steps_and_time():
    run = told((100.0, 102.0), (112.0, 114.0), (124.0, 126.0), **{f"r{rank}": [
        start(1, 100.0), steps(1, [4.0 + rank], 101.0),
        # Rank 1 was stopped a step earlier than rank 0.
        steps(2, [4.0], 101.5) if rank else steps(3, [3.0, 2.0], 101.5),
        start(2, 112.0), steps(3, [9.0 + rank], 112.5), steps(4, [1.0 + rank], 113.0),
        start(3, 124.0), steps(5, [0.5 + rank], 125.0)] for rank in (0, 1)})
    assert points(run.curve("loss")) == {1: 4.5, 2: 3.5, 3: 9.5, 4: 1.5, 5: 1.0}
    # The pauses of ten seconds are left out; an attempt begins with a second of its own. The second
    # step's loss was told with that of the third, which the next attempt has made again.
    assert points(run.curve("loss", by_time=True)) == {
        1000: 4.5, 2248: 3.5, 3500: 9.5, 4000: 1.5, 7000: 1.0}


def test_the_extremes_of_a_mean_are_kept_and_steps_of_another_optimizer_are_none():
    run = told(r0=[start(1, 100.0), at(schema.Step(
        10, 0.1, 0, n=10, loss=2.0, loss_min=1.0, loss_max=9.0), 101.0),
        at(schema.Step(11, 0.1, 0, n=0, loss=50.0), 102.0)])
    assert run.curve("loss").at(10) == (1.0, 2.0, 9.0)
    assert run.curve("loss").last == 10
    assert run.curve("loss", by_time=True).at(1000) == (1.0, 2.0, 9.0)


def test_whatever_a_run_records_can_be_drawn_as_the_mean_of_its_ranks():
    events = [start(1, 100.0), steps(1, [4.0], 101.0, samples_per_s=50.0),
              at(schema.Eval(1, {"accuracy": 0.5, "loss": 3.0}), 101.0),
              at(schema.Metric(2, {"accuracy": 0.25, "odd": None}), 102.0)]
    run = told(r0=events, r1=[start(1, 100.0), steps(1, [6.0], 101.0, samples_per_s=70.0)])
    store = SeveralStore()
    store.runs = [run, told(r0=events[:2])]
    assert store.names == {
        "loss": ("loss", 2), "lr": ("learning rate", 2),
        "samples_per_s": ("samples per second of a rank", 2), "eval:accuracy": ("eval accuracy", 1),
        "eval:loss": ("eval loss", 1), "log:accuracy": ("accuracy", 1), "memory": ("memory", 2)}
    found = {key: points(run.curve(key)) for key in store.names}
    assert found == {"loss": {1: 5.0}, "eval:accuracy": {1: 0.5}, "eval:loss": {1: 3.0},
                     "log:accuracy": {2: 0.25}, "lr": {1: 0.1}, "samples_per_s": {1: 60.0},
                     "memory": {}}
    assert points(run.curve("eval:accuracy", by_time=True)) == {1000: 0.5}
    assert not points(store.runs[1].curve("eval:accuracy"))


def test_a_script_that_only_prints_has_a_curve_by_the_order_of_its_values():
    run = told(r0=[start(1, 100.0), *(at(schema.Metric(None, {"loss": value}), 101.0 + i)
                                      for i, value in enumerate([3.0, 2.0, 1.5]))])
    assert points(run.curve("loss")) == {0: 3.0, 1: 2.0, 2: 1.5}
    assert points(run.curve("loss", by_time=True)) == {1000: 3.0, 2000: 2.0, 3000: 1.5}


def test_memory_is_bounded():
    events = [start(1, 0.0), *(event for step in range(0, 40_000, 20) for event in (
        steps(step + 19, [1.0] * 20, step / 10), schema.Metric(step, {f"name {step}": 1.0})))]
    run = told(**{f"r{rank}": events for rank in (0, CURVED)})
    assert max(len(run.curve("loss", by_time=by)) for by in (False, True)) <= 2048
    assert len(run.recorded.values) <= 512
    assert [*run.loss.ranks] == [0]
    assert run.ranks[CURVED].step == 39_999  # in the table it counts
