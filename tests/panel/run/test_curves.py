"""Any recorded value as a curve: what is kept of it, and choosing it by its name."""


import math
import unicodedata

from gpu_engine.events import schema
from gpu_engine.events.paths import DEVICES
from gpu_engine.events.rank_view import RankView
from gpu_engine.runs.folder import Cause
from gpu_panel.charts.curves import CurveView
from gpu_panel.run import recorded, subjects
from gpu_panel.run.chart import ChartPane
from gpu_panel.run.recorded import Recorded

from ... import event_lines
from ..run_kit import (
    SMALL,
    T0,
    WIDE,
    Mini,
    Written,
    flat,
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


def test_a_rank_that_goes_back_replaces_its_values_and_a_repeated_step_adds_to_them():
    seen, view = Recorded(), RankView(0)
    for at in range(10):
        seen.named(view, schema.Metric(at, {"a": float(at), "gone": None}))
    seen.named(view, schema.Metric(9, {"a": 11.0}))
    assert list(seen.values) == ["log:a"]  # unknown is no value
    series = seen.values["log:a"].ranks[0]
    assert series.at(9) == (9.0, 10.0, 11.0)
    seen.begin(0)
    seen.named(view, schema.Metric(5, {"a": 50.0}))
    assert series.last == 5
    assert series.at(5) == (50.0, 50.0, 50.0)
    seen.begin(0)
    seen.named(view, schema.Metric(5, {"a": 60.0}))  # the same step anew
    assert series.at(5) == (60.0, 60.0, 60.0)
    for lr, steps in ((1.0, (1, 2, 3)), (3.0, (2, 3)), (9.0, (3,))):
        seen.begin(0)
        seen.stepped(0, [schema.Step(step, lr, 0, n=1) for step in steps])
    seen.stepped(0, [schema.Step(3, 5.0, 0, n=1), schema.Step(4, None, 0, n=1)])
    series = seen.values["lr"].ranks[0]
    assert [series.at(step) for step in (1, 2, 3, 4)] == [
        (1.0, 1.0, 1.0), (3.0, 3.0, 3.0), (5.0, 7.0, 9.0), None]
    seen.named(RankView(0, step=7), schema.Eval(0, {"a": 1.0}))
    assert seen.values["eval:a"].ranks[0].last == 0


def test_many_names_on_many_ranks_take_bounded_memory():
    """64 ranks with 300 names would be 19,200 curves."""
    seen = Recorded()
    for rank in range(64):
        view = RankView(rank)
        for at in (0, 5_000_000):
            seen.named(view, schema.Metric(
                at, {f"layer {i}": 1.0 for i in range(300)}))
    kept = [s for v in seen.values.values() for s in v.ranks.values()]
    assert len(kept) == recorded.MOST
    assert seen.left_out > 0
    buckets = sum(s.capacity for s in kept)
    assert buckets == recorded.MANY * recorded.FINE \
        + (recorded.MOST - recorded.MANY) * recorded.COARSE
    assert all(len(s) <= s.capacity for s in kept)


async def test_a_chart_shows_what_is_chosen_by_its_name(tmp_path):
    run = trained(tmp_path)
    for at in range(0, 100, 20):
        run.write(0, ("eval", at / 2, {"step": at, "accuracy": 0.2 + at / 200, "loss": 2.0}),
                  ("metric", at / 2, {"step": at, "lm/日本 perplexity": 90.0 - at}))
    async with watched(run, reached(1, 99), at=52) as (pilot, app):
        screen = app.run_screen
        await pilot.press("c")
        await says(pilot, "learning rate")
        text = screen_text(app)
        for name in ("loss", "learning rate", "samples per second", "data wait", "eval accuracy",
                     "eval loss", "lm/日本 perplexity", "memory", "reserved memory", "host memory"):
            assert name in text, name
        await pilot.press(*"accur")
        await until(pilot, lambda: "learning rate" not in screen_text(app))
        await pilot.press("enter")
        await says(pilot, "eval accuracy ─ 0.600")
        view = screen.query_one("#loss", CurveView)
        assert [x.label for x in view.lines] == ["rank 0"]  # nobody else has evaluated
        assert [view.lines[0].series.at(x) for x in (0, 40, 41)] == [
            (0.2, 0.2, 0.2), (0.4, 0.4, 0.4), None]
        await pilot.press("2", "c", *"samp")  # the second chart, as it has the focus
        await until(pilot, lambda: "learning rate" not in screen_text(app))
        await pilot.press("enter")
        await says(pilot, "samples per second ─ 12.4k/s in all")
        assert screen.query_one("#memory", ChartPane).axes.unit == "/s"
        assert "eval accuracy" in screen_text(app)
    app = Mini(Written(tmp_path / "other").run, at=5)  # a run that has recorded no such thing
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        await shown(pilot)
        assert "no step yet" in screen_text(app)
    ended = Written(tmp_path / "ended")
    ended.state("failed", ended=T0 + 4)
    app = Mini(ended.run, at=5)
    async with app.run_test(size=SMALL) as pilot:
        await settled(pilot)
        await press(pilot, "1")
        assert "│ no step │" in said(app)


def test_a_title_says_what_the_ranks_have_now():
    assert [subjects.summary("lr", values) for values in (
        [], [None], [1.5], [1.0, None, 2.0], [1.0, 1.00001], [1.0, math.nan], [math.nan] * 2)] == [
        "lr", "lr", "lr ─ 1.500", "lr ─ mean 1.500, ranks 1.000 to 2.000",
        "lr ─ 1.000 on all ranks",
        "lr ─ mean 1.000, ranks 1.000 to 1.000, 1 not finite", "lr ─ NaN on all ranks"]
    assert subjects.summary("rate", [1.0, 1.0], total=True, each="devices") == \
        "rate ─ 2.000 in all, devices 1.000 to 1.000"


async def test_marks_are_read_at_the_cursor(tmp_path):
    run = trained(tmp_path)
    run.write(0, ("eval", 20, {"step": 40, "accuracy": 0.25, "日本": 1.0}),
              ("checkpoint", 30, {"step": 60, "path": "checkpoints/step-00000060",
                                  "seconds": 0.24, "bytes": 1 << 28}))
    run.start(0, at=60, attempt=2)
    run.steps(0, 80, 84, at=61.0)
    async with watched(run, lambda s: s.view.begins, at=70) as (_pilot, app):
        view = app.run_screen.query_one("#loss", CurveView)
        kinds = [(m.x, m.kind) for m in view.marks]
        assert kinds == [(80, "┊"), (60, "▪"), (40, "◆")]
        for at, said in ((80, "┊ attempt 2 begins"), (60, "▪ checkpoint, 256 MiB in 0.2 s"),
                         (40, "◆ eval accuracy 0.250, ?? 1.000")):
            view.cross = at
            assert said in view.reading()
        text = screen_text(app).splitlines()
        assert any("▪" in line and "◆" in line for line in text)
        # Over time, the same marks are at the seconds at which it happened, without the pause.
        assert [(m.x, m.kind) for m in app.run_screen.query_one("#memory", CurveView).marks] == [
            (50, "┊"), (30, "▪"), (20, "◆")]


async def test_the_devices_curves_are_read_from_their_own_files(tmp_path):
    """Those of this machine, and those of a host; a gap where nothing was recorded."""
    run = trained(tmp_path)
    lines = [event_lines.line("devices", {"ids": ["0", "1"], "utilization": [0.5, at / 100],
                                          "power": [250.0, None], "temperature": [60, 61]},
                              t=T0 + at) for at in (5, 10, 15, 90, 95)]
    (run.run.path / DEVICES).write_bytes(b"".join(lines) + b"torn")
    (run.run.path / "hosts").mkdir()
    (run.run.path / "hosts" / f"gpu7.{DEVICES}").write_bytes(lines[0])
    async with watched(run, lambda s: s.caught_up and s.devices.version >= 6, at=97) as (
            pilot, app):
        store = app.run_screen.store
        assert sorted(store.devices.latest, key=str) == [("gpu7", "0"), ("gpu7", "1"),
                                                         (None, "0"), (None, "1")]
        text = screen_text(app)
        assert "util  power   temp" in text
        await pilot.press("2", "c", *"utilis")
        await until(pilot, lambda: "learning rate" not in screen_text(app))
        await pilot.press("enter")
        await until(pilot, lambda: "utilisation ─ mean 50 %, devices 5 % to 95 %"
                    in screen_text(app))
        view = app.run_screen.query_one("#memory", CurveView)
        series = {x.label: x.series for x in view.lines}
        assert series["GPU 1"].at(90) == (0.9, 0.9, 0.9)
        assert series["GPU 1"].at(40) is None
        plotted = [strip.text[20:45] for strip in view.frame(60, 12)[1:-1]]
        assert not "".join(plotted).strip()  # nothing through the gap
        assert {s.key for s in subjects.every(store)} >= {"power", "temperature", "utilization"}


# --- Whatever a run folder holds, the run screen shows what it can ---


async def test_losses_that_are_not_finite(tmp_path):
    run = Written(tmp_path)
    for rank in (0, 1):
        run.start(rank)
        run.steps(rank, 0, 9)
    run.steps(1, 10, 14, loss=[1.0, math.nan, math.inf, -math.inf, math.nan])
    run.steps(0, 10, 14)
    async with watched(run, lambda s: s.view.bad_step is not None, at=8) as (_pilot, app):
        text = flat(screen_text(app))
        assert "the loss of rank 1 was not finite at step 11" in text
        assert "×" in text
        assert "1 not finite" in text
        assert "NaN" in text


async def test_damaged_and_torn_and_foreign_lines(tmp_path):
    run = trained(tmp_path)
    run.raw(0, b"not json\n\x00\xff\xfe\n[1,2]\n{\"t\":1}\n")
    run.raw(0, b'{"t":%d,"kind":"step","step":"x","losses":7}\n' % T0)
    run.raw(0, b'{"t":%d,"kind":"_init__","x":1}\n' % T0)
    run.raw(0, b'{"t":%d,"kind":"memory","gpu_allocated":[{}],"rss":[]}\n' % T0)
    run.raw(0, b'{"t":%d,"kind":"step","step":130,"losses":[null,"x",2]}\n' % T0)
    run.raw(0, b'{"t":%d,"kind":"step","step":120,"loss":1e300,"later":[{}]}\n' % T0)
    run.raw(0, b'{"t":1790000051,"kind":"step","step":121,"n":1,"los')  # not finished yet
    async with watched(run, lambda s: s.skipped_lines == 7) as (pilot, app):
        assert "damaged lines ignored" in flat(screen_text(app))
        store = app.run_screen.store
        assert store.ranks[0].step == 120
        run.raw(0, b'ses":[1.5]}\n')
        await settled(pilot, reached(0, 121))
        assert store.loss.ranks[0].at(121) == (1.5, 1.5, 1.5)


async def test_names_and_errors_can_do_nothing(tmp_path):
    evil = "\x1b]52;c;eA==\x07\x1b[2J\u202e[bold]ev[/il"
    run = trained(tmp_path, name=evil)
    run.write(0, ("warning", 1, {"message": evil}),
              ("eval", 2, {"step": 3, evil: 1.0}),
              ("phase", 3, {"phase": evil, "since": T0, "step": 1}),
              ("checkpoint", 4, {"step": 3, "path": evil, "seconds": 1.0, "bytes": 5}),
              ("error", 5, {"type": evil, "message": evil, "traceback": evil + "\n" + evil}))
    run.state("failed", ended=T0 + 9, reason=evil, cause=Cause(evil, 0, evil, evil))
    for size in (WIDE, SMALL):
        async with watched(run, lambda s: s.view.first_error() is not None, size=size) as (
                _pilot, app):
            text = screen_text(app)
            assert "[bold]ev[/il" in text
            assert not [c for c in text.replace("\n", "")
                        if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


async def test_a_folder_with_nothing_in_it(tmp_path):
    from gpu_engine.runs.folder import Run

    (tmp_path / "9999").mkdir()
    app = Mini(Run(tmp_path / "9999"))
    async with app.run_test(size=SMALL) as pilot:
        await settled(pilot)
        assert "? lost: state.json is missing" in flat(screen_text(app))


async def test_on_cpu_host_memory_is_drawn(tmp_path):
    run = Written(tmp_path, cpu=True)
    for rank in (0, 1):
        run.start(rank)
        run.steps(rank, 0, 19, cpu=True)
    async with watched(run, reached(1, 19), at=10) as (_pilot, app):
        text = flat(screen_text(app))
        assert "host memory ─ 2.2 GiB a rank" in text
        assert "allocated" not in text  # columns for GPUs
