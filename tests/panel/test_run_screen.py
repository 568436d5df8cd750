"""The run screen on runs written by hand, some of them while it watches."""

from __future__ import annotations

import asyncio
import math
import unicodedata
from pathlib import Path

import pytest

from gpu_engine.runs import Cause
from gpu_panel.screens.dialogs import Confirm
from gpu_panel.screens.run import RunScreen
from gpu_panel.widgets.curves import CurveView
from gpu_panel.widgets.log_view import LogView
from gpu_panel.widgets.rank_table import RankTable

from .run_kit import T0, Mini, Written, settled, shown, terminal

WIDE, SMALL = (160, 48), (80, 24)


def trained(folder: Path, **more) -> Written:
    """Two ranks, 100 of 400 steps done."""
    run = Written(folder, **more)
    for rank in (0, 1):
        run.start(rank)
        run.steps(rank, 0, 99)
        run.log(rank, b"".join(b"rank %d says %d\n" % (rank, i) for i in range(50)))
    return run


def reached(rank: int, step: int):
    """Whether this rank, and with it those before, is at this step."""
    return lambda store: rank in store.ranks and all(
        store.ranks[r].step == step for r in range(rank + 1))


def flat(text: str) -> str:
    return " ".join(text.split())


async def test_what_is_there_is_shown(tmp_path: Path) -> None:
    run = trained(tmp_path)
    run.write(0, ("eval", 49, {"step": 99, "loss": 1.91, "accuracy": 0.412}),
              ("checkpoint", 50, {"step": 99, "path": "checkpoints/step-00000099",
                                  "seconds": 1.0, "bytes": 5}),
              ("warning", 50, {"message": "the last batch is dropped"}))
    app = Mini(run.run, at=50.5)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot, lambda s: s.caught_up and s.saved is not None)
        text = flat(terminal(app))
        for part in ("run 3f2a bytes-gpt · DDP×2 · 256 global · bf16", "● running 00:50 · 25 %",
                     "02:30 left", "step 99 of 400", "epoch 1 of 2", "12.4k/s",
                     "saved step 99 just now", "eval loss 1.910, accuracy 0.412 at 99",
                     "loss ─ mean 2.440, ranks 2.430 to 2.450", "memory ─ 28.0 GiB, peak 34.0",
                     "! 1 warning", "the last batch is dropped",
                     "0 GPU 0 forward 99 2.430 6.2k 3 % 28.0 33.0 34.0 2.0 0.5 s",
                     "1 GPU 1 forward 99 2.450 6.2k 3 % 28.0 33.0 34.0 2.2 1.0 s",
                     "log ─ rank 0", "rank 0 says 49"):
            assert part in text, part


async def test_it_grows_while_one_watches(tmp_path: Path) -> None:
    run = Written(tmp_path)
    app = Mini(run.run, at=12.0)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        assert "waiting for ranks 0, 1 · 00:12 since it started" in flat(terminal(app))
        assert "no step yet" in terminal(app)
        run.start(0)
        await settled(pilot, lambda s: s.ranks and s.ranks[0].beat is not None)
        assert "waiting for rank 1" in flat(terminal(app))
        run.start(1)
        for rank in (0, 1):
            run.steps(rank, 0, 19, at=11.0)
        await settled(pilot, reached(1, 19))
        text = flat(terminal(app))
        assert "waiting" not in text
        assert "step 19 of 400" in text
        run.log(0, b"a new line\n")
        await shown(pilot)
        assert "a new line" in terminal(app)


async def test_queued_without_ranks(tmp_path: Path) -> None:
    run = Written(tmp_path, state="queued", started=None)
    app = Mini(run.run, at=3.0)
    async with app.run_test(size=SMALL) as pilot:
        await settled(pilot)
        assert "waiting for ranks 0, 1 · 00:05 since it was asked for" in flat(terminal(app))
        assert "◌ queued" in terminal(app)


@pytest.mark.parametrize("size", [SMALL, WIDE, (120, 36), (40, 12), (20, 6), (250, 70)])
async def test_every_size(tmp_path: Path, size: tuple[int, int]) -> None:
    run = trained(tmp_path)
    app = Mini(run.run)
    async with app.run_test(size=size) as pilot:
        await settled(pilot)
        for key in ("1", "2", "3", "4", "l", "m", "m", "left", "plus"):
            await pilot.press(key)
        await shown(pilot)
        assert "3f2a" in terminal(app)


async def test_panes_behind_tabs(tmp_path: Path) -> None:
    run = trained(tmp_path)
    app = Mini(run.run)
    async with app.run_test(size=SMALL) as pilot:
        await settled(pilot)
        for key, found in (("1", "loss ─ mean"), ("2", "memory ─"), ("3", "data wait"),
                           ("4", "log ─ rank 0")):
            await pilot.press(key)
            await shown(pilot)
            text = terminal(app)
            if key == "3":
                assert "GPU 1" in text
            else:
                assert found in text
            assert ("says" in text) == (key == "4")
        await pilot.press("3", "down", "enter")
        await shown(pilot)
        assert "rank 1 says 49" in terminal(app)


async def test_the_log_of_another_rank(tmp_path: Path) -> None:
    run = trained(tmp_path)
    run.run.path.joinpath("supervisor.log").write_text("supervising\n")
    app = Mini(run.run)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        await pilot.press("r")
        await shown(pilot)
        assert "rank 1 says 49" in terminal(app)
        assert app.run_screen.query_one(RankTable).chosen == 1
        await pilot.press("right_square_bracket")
        await shown(pilot)
        assert "supervising" in terminal(app)
        await pilot.press("left_square_bracket", "left_square_bracket")
        await shown(pilot)
        assert "rank 0 says 49" in terminal(app)


async def test_keys_type_into_the_search(tmp_path: Path) -> None:
    run = trained(tmp_path)
    app = Mini(run.run)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        await pilot.press("slash", *"slrmy1 7", "backspace", "backspace")
        field = app.run_screen.query_one("#find")
        assert field.value == "slrmy1"
        assert isinstance(app.screen, RunScreen)  # s asked nothing
        await pilot.press("escape")
        assert not field.display
        assert app.run_screen.query_one(LogView).needle == ""
        await pilot.press("slash", *"SAYS 7".lower(), "enter")
        await shown(pilot)
        assert app.run_screen.query_one(LogView).current() == "rank 0 says 7"
        await pilot.press("y")
        assert app.clipboard == "rank 0 says 7"


async def test_log_scale_and_smoothing_are_named(tmp_path: Path) -> None:
    run = trained(tmp_path)
    app = Mini(run.run)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        await pilot.press("l", "m")
        assert app.run_screen.query_one("#loss", CurveView).border_subtitle == "log · smooth 0.6"
        await pilot.press("l", "m", "m")
        assert app.run_screen.query_one("#loss", CurveView).border_subtitle == ""


# --- how it ends -------------------------------------------------------------------------------

async def test_failure_leads_with_the_rank_that_failed_first(tmp_path: Path) -> None:
    run = trained(tmp_path)
    trace = "Traceback (most recent call last):\n  File \"t.py\", line 3\nRuntimeError: boom [x\n"
    run.write(1, ("error", 51, {"type": "RuntimeError", "message": "boom [x", "traceback": trace,
                                "phase": "forward", "step": 99}))
    run.write(0, ("error", 52, {"type": "DistBackendError", "message": "peer gone",
                                "traceback": "later", "phase": "backward", "step": 99}))
    run.state("failed", ended=T0 + 53, exit_code=1, reason="rank 1 ended with exit status 1",
              cause=Cause("boom [x", 1, "RuntimeError", trace))
    run.release()
    app = Mini(run.run)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        text = flat(terminal(app))
        assert "✗ rank 1 failed first: RuntimeError: boom [x" in text
        assert "rank 1 ended with exit status 1" in text
        assert "log ─ traceback of rank 1" in text
        assert 'File "t.py", line 3' in text
        assert "✗ RuntimeError" in text
        assert "✗ failed 00:53" in text
        await pilot.press("r")
        await shown(pilot)
        assert "rank 1 says 49" in terminal(app)


async def test_a_rank_that_fails_is_named_before_the_run_has_ended(tmp_path: Path) -> None:
    run = trained(tmp_path)
    run.write(1, ("error", 51, {"type": "OutOfMemoryError", "message": "CUDA out of memory",
                                "traceback": "Traceback\nOOM", "phase": "forward", "step": 99}))
    app = Mini(run.run, at=52)
    async with app.run_test(size=SMALL) as pilot:
        await settled(pilot, lambda s: s.first_error() is not None)
        assert "rank 1 failed first at step 99: OutOfMemoryError" in flat(terminal(app))
        await pilot.press("4")
        await shown(pilot)
        assert "log ─ traceback of rank 1" in terminal(app)


async def test_lost_says_what_is_so(tmp_path: Path) -> None:
    run = trained(tmp_path)
    run.write(0, ("checkpoint", 40, {"step": 80, "path": "checkpoints/step-00000080",
                                     "seconds": 1.0, "bytes": 5}))
    run.release()
    app = Mini(run.run, at=4000)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot, lambda s: s.caught_up and s.saved is not None)
        text = flat(terminal(app))
        assert "? lost: its supervisor died without a word" in text
        assert "last step 99 · last checkpoint step 80, 66 min ago" in text
        assert "ended in forward" in text


async def test_completed_says_totals(tmp_path: Path) -> None:
    run = trained(tmp_path)
    for rank in (0, 1):
        run.write(rank, ("end", 51, {"outcome": "completed", "steps": 100, "seconds": 50.0}))
    run.state("completed", ended=T0 + 75, exit_code=0)
    run.release()
    app = Mini(run.run)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        text = flat(terminal(app))
        assert "✓ completed 99 steps in 01:15 · loss 2.440" in text
        assert "✓ completed 01:15" in text
        await pilot.press("s")
        await pilot.pause()
        assert isinstance(app.screen, RunScreen)  # nothing to stop


# --- stop --------------------------------------------------------------------------------------

async def test_stop_asks_and_then_offers_to_end_now(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    called, loop = asyncio.Event(), asyncio.get_running_loop()

    def stop(_: object, *, now: bool = False) -> None:
        asked.append(now)
        if now:
            loop.call_soon_threadsafe(called.set)

    monkeypatch.setattr("gpu_engine.runs.Run.stop", stop)
    run = trained(tmp_path)
    app = Mini(run.run)
    async with app.run_test(size=SMALL) as pilot:
        await settled(pilot)
        await pilot.press("s")
        await until(pilot, Confirm)
        assert "finish their step and save" in flat(terminal(app))
        await pilot.press("escape")
        await until(pilot, RunScreen)
        assert asked == []
        await pilot.press("s")
        await until(pilot, Confirm)
        await pilot.press("y")
        await until(pilot, RunScreen)
        run.state("stopping")
        await settled(pilot, lambda s: s.state.state == "stopping")
        assert asked == [False]
        assert "◐ stopping" in terminal(app)
        await pilot.press("s")
        await until(pilot, Confirm)
        assert "End now" in terminal(app)
        await pilot.press("y")
        await until(pilot, RunScreen)
        await asyncio.wait_for(called.wait(), 10)
        assert asked == [False, True]


async def until(pilot, screen: type) -> None:
    async with asyncio.timeout(10):
        while not isinstance(pilot.app.screen, screen):
            await pilot.pause(0.01)
    await pilot.pause()


async def test_escape_goes_back(tmp_path: Path) -> None:
    run = trained(tmp_path)
    app = Mini(run.run)
    async with app.run_test(size=SMALL) as pilot:
        await settled(pilot)
        await pilot.press("escape")
        await pilot.pause()
        assert not isinstance(app.screen, RunScreen)


# --- what a run may hold -----------------------------------------------------------------------

async def test_losses_that_are_not_finite(tmp_path: Path) -> None:
    run = Written(tmp_path)
    for rank in (0, 1):
        run.start(rank)
        run.steps(rank, 0, 9)
    run.steps(1, 10, 14, loss=[1.0, math.nan, math.inf, -math.inf, math.nan])
    run.steps(0, 10, 14)
    app = Mini(run.run, at=8)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot, lambda s: s.bad_step is not None)
        text = flat(terminal(app))
        assert "the loss of rank 1 was not finite at step 11" in text
        assert "×" in text
        assert "1 not finite" in text
        assert "NaN" in text


async def test_sixty_four_ranks(tmp_path: Path) -> None:
    run = Written(tmp_path, ranks=64)
    for rank in range(64):
        run.start(rank)
        run.steps(rank, 0, 49)
    app = Mini(run.run, at=25)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot, lambda s: len(s.ranks) == 64 and s.ranks[63].step == 49)
        text = flat(terminal(app))
        assert "ranks ─ 64" in text
        assert "DDP×64" in text
        assert app.run_screen.query_one("#loss", CurveView).border_subtitle == "band"
        await pilot.press("3", "end")
        await pilot.pause()
        assert "63 GPU 63" in flat(terminal(app))


async def test_damaged_and_torn_and_foreign_lines(tmp_path: Path) -> None:
    run = trained(tmp_path)
    run.raw(0, b"not json\n\x00\xff\xfe\n[1,2]\n{\"t\":1}\n")
    run.raw(0, b'{"t":%d,"kind":"step","step":"x","losses":7}\n' % T0)
    run.raw(0, b'{"t":%d,"kind":"_init__","x":1}\n' % T0)
    run.raw(0, b'{"t":%d,"kind":"memory","gpu_allocated":[{}],"rss":[]}\n' % T0)
    run.raw(0, b'{"t":%d,"kind":"step","step":120,"loss":1e400,"losses":[null,"x",2]}\n' % T0)
    run.raw(0, b'{"t":1790000051,"kind":"step","step":121,"n":1,"los')  # not finished yet
    app = Mini(run.run)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot, lambda s: s.skipped_lines >= 4)
        assert "damaged lines left out" in flat(terminal(app))
        store = app.run_screen.store
        assert store.ranks[0].step == 120
        run.raw(0, b'ses":[1.5]}\n')
        await settled(pilot, reached(0, 121))
        assert store.loss.ranks[0].at(121) == (1.5, 1.5, 1.5)


async def test_an_events_file_that_begins_again(tmp_path: Path) -> None:
    run = trained(tmp_path)
    app = Mini(run.run)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        run.run.events(0).write_bytes(b"")
        run._writers.pop(0).close()
        run.start(0)
        run.steps(0, 0, 4)
        await settled(pilot, reached(0, 4))
        assert app.run_screen.store.loss.ranks[0].last == 4


async def test_a_second_attempt_replaces_the_tail(tmp_path: Path) -> None:
    run = trained(tmp_path)
    for rank in (0, 1):
        run.start(rank, at=60, attempt=2)
        run.steps(rank, 50, 54, loss=[9.0] * 5)
    run.state("running", attempt=2)
    app = Mini(run.run)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot, reached(1, 54))
        store = app.run_screen.store
        assert store.loss.all.last == 54
        assert store.loss.all.at(50) == (9.0, 9.0, 9.0)
        assert "attempt 2" in flat(terminal(app))


async def test_names_and_errors_can_do_nothing(tmp_path: Path) -> None:
    evil = "\x1b]52;c;eA==\x07\x1b[2J\u202e[bold]ev[/il"
    run = trained(tmp_path, name=evil)
    run.write(0, ("warning", 1, {"message": evil}),
              ("eval", 2, {"step": 3, evil: 1.0}),
              ("phase", 3, {"phase": evil, "since": T0, "step": 1}),
              ("checkpoint", 4, {"step": 3, "path": evil, "seconds": 1.0, "bytes": 5}),
              ("error", 5, {"type": evil, "message": evil, "traceback": evil + "\n" + evil}))
    run.state("failed", ended=T0 + 9, reason=evil, cause=Cause(evil, 0, evil, evil))
    app = Mini(run.run)
    for size in (WIDE, SMALL):
        app = Mini(run.run)
        async with app.run_test(size=size) as pilot:
            await settled(pilot, lambda s: s.first_error() is not None)
            text = terminal(app)
            assert "[bold]ev[/il" in text
            assert not [c for c in text.replace("\n", "")
                        if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


async def test_a_folder_with_nothing_in_it(tmp_path: Path) -> None:
    from gpu_engine.runs import Run

    (tmp_path / "9999").mkdir()
    app = Mini(Run(tmp_path / "9999"))
    async with app.run_test(size=SMALL) as pilot:
        await settled(pilot)
        assert "? lost: state.json is missing or damaged" in flat(terminal(app))


async def test_data_parallel_has_a_figure_a_device(tmp_path: Path) -> None:
    run = Written(tmp_path, mode="dp")
    run.start(0)
    run.steps(0, 0, 19, devices=2)
    app = Mini(run.run, at=10)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot, reached(0, 19))
        text = flat(terminal(app))
        assert "DP×2" in text
        assert "GPU 0 forward 19" in text
        assert "GPU 1 29.0 33.0 35.0" in text


async def test_on_cpu_host_memory_is_drawn(tmp_path: Path) -> None:
    run = Written(tmp_path, cpu=True)
    for rank in (0, 1):
        run.start(rank)
        run.steps(rank, 0, 19, cpu=True)
    app = Mini(run.run, at=10)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot, reached(1, 19))
        text = flat(terminal(app))
        assert "host memory ─ 2.2 GiB a rank" in text
        assert "allocated" not in text  # columns of GPUs


async def test_a_rank_that_stands_still_is_named_with_its_phase(tmp_path: Path) -> None:
    run = trained(tmp_path)
    run.write(1, ("phase", 51, {"phase": "data", "since": T0 + 51, "step": 99}))
    app = Mini(run.run, at=52)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot)
        assert "has stood" not in terminal(app)
        app.at = 171
        await shown(pilot)
        text = flat(terminal(app))
        assert "! rank 1 has stood in data for 02:00 after step 99" in text
        assert "rank 0 in forward; d shows where" in text


async def answered(pilot) -> None:
    asking = [w for w in pilot.app.workers if w.group == "stacks"]
    if asking:  # of an empty list Textual makes all there are
        await pilot.app.workers.wait_for_complete(asking)
    await shown(pilot)


async def test_the_chosen_rank_is_asked_where_it_is(tmp_path: Path, monkeypatch) -> None:
    asked = []
    answers = iter([True, False])
    monkeypatch.setattr("gpu_engine.runs.Run.dump_stacks",
                        lambda self, rank: asked.append(rank) or next(answers))
    run = trained(tmp_path)
    app = Mini(run.run, at=50.5)
    async with app.run_test(size=SMALL) as pilot:
        await settled(pilot)
        await pilot.press("r", "d")
        await answered(pilot)
        assert asked == [1]
        assert "log ─ rank 1" in terminal(app)
        await pilot.press("d")
        await answered(pilot)
        told = [n.message for n in app._notifications]
        assert any("can't be asked" in m for m in told), told


async def test_the_loss_of_another_optimizer_can_be_drawn(tmp_path: Path) -> None:
    run = Written(tmp_path, ranks=1)
    run.start(0)
    for step in range(1, 20):
        run.write(0, ("step", step, {
            "step": step, "n": 1, "losses": [2.0 / step],
            "others": {"1": {"name": "optimizer 1 (SGD)", "step": step, "n": 1,
                             "loss": 7.0 + step, "losses": [7.0 + step]}}}))
    run.write(0, ("step", 20, {"step": 19, "n": 0, "others": {
        "1": {"name": "optimizer 1 (SGD)", "step": 20, "n": 1, "losses": [30.0]}}}))
    app = Mini(run.run, at=21)
    async with app.run_test(size=WIDE) as pilot:
        await settled(pilot, reached(0, 19))
        assert "optimizer 0 (o)" in terminal(app)
        await pilot.press("o")
        await shown(pilot)
        assert "optimizer 1 (SGD) (o)" in terminal(app)
        screen = app.run_screen
        assert screen.store.others[1].loss.ranks[0].hi[-1] == 30.0
        assert len(screen.store.loss.ranks[0].hi) == 19
        await pilot.press("o")
        await shown(pilot)
        assert "optimizer 0 (o)" in terminal(app)
