"""A rank that stands still: who, in which phase, for how long, and where."""

from __future__ import annotations

import asyncio
import os
import signal

from gpu_engine.common import procs
from gpu_engine.places import verbs
from gpu_engine.places.verbs import launch
from gpu_engine.runs import disk_room, leftovers
from gpu_engine.runs.disk_room import Room
from gpu_engine.runs.folder import RankProcess
from gpu_engine.spec.read import from_dict
from gpu_panel.launch import row_keys
from gpu_panel.launch.run_feed import RunsFeed
from gpu_panel.run.resume import ResumeOptions
from gpu_panel.run.snapshot import look

from ...conftest import over, wait_for
from ...remote.run.kit import ENDLESS, make_hosts, there
from ..run_kit import (
    SMALL,
    T0,
    flat,
    screen_text,
    settled,
    shown,
    trained,
    watched,
    worked,
)


async def test_a_rank_that_stands_still_is_named_with_its_phase(tmp_path):
    run = trained(tmp_path)
    run.write(1, ("phase", 51, {"phase": "data", "since": T0 + 51, "step": 99}))
    async with watched(run, at=52) as (pilot, app):
        assert "has stalled" not in screen_text(app)
        assert "12.4k examples/s" in screen_text(app)
        assert "left" in screen_text(app).splitlines()[0]
        app.at = 171
        await shown(pilot)
        text = flat(screen_text(app))
        # The rate from before the standstill is not shown as the present one.
        assert "stalled" in text
        assert "left" not in text.partition("┌")[0].partition("loss ─")[0]
        assert "k/s" not in text
        assert "6.2k" not in text
        assert "! rank 1 has stalled in data for 02:00 after step 99" in text
        assert "rank 0 in forward d shows where" in text


async def answered(pilot):
    await worked(pilot, "stacks")
    await shown(pilot)


async def test_the_chosen_rank_is_asked_where_it_is(tmp_path, monkeypatch):
    asked = []
    answers = iter([True, False])
    monkeypatch.setattr("gpu_engine.runs.stacks.request",
                        lambda self, rank: asked.append(rank) or next(answers))
    run = trained(tmp_path)
    async with watched(run, at=50.5, size=SMALL) as (pilot, app):
        await pilot.press("r", "d")
        await answered(pilot)
        assert asked == [1]
        assert "log ─ rank 1" in screen_text(app)
        await pilot.press("d")
        await answered(pilot)
        told = [n.message for n in app._notifications]
        assert any("can't print its stacks" in m for m in told), told


async def test_ranks_that_a_full_disk_silences_are_not_said_to_be_stuck(tmp_path, monkeypatch):
    run = trained(tmp_path)
    for rank in (0, 1):
        run.write(rank, ("phase", 50, {"phase": "backward", "since": T0 + 50, "step": 99}))
    free = 0
    monkeypatch.setattr(disk_room, "of", lambda folder: Room(str(folder), free))
    async with watched(run, lambda s: s.unheard, at=75, size=SMALL) as (pilot, app):
        text = flat(screen_text(app))
        assert "! no space left, so nothing is recorded of the ranks" in text
        assert "no reports" in text
        assert "has stalled" not in text
        free = 1 << 30
        await settled(pilot, lambda s: s.unheard is None)
        assert "rank 0 has stalled in backward" in flat(screen_text(app))


async def test_where_ranks_stand_still_all_are_asked(tmp_path, monkeypatch):
    asked: list[int] = []
    monkeypatch.setattr("gpu_engine.runs.stacks.request",
                        lambda self, rank: asked.append(rank) or True)
    run = trained(tmp_path)
    run.write(1, ("phase", 51, {"phase": "data", "since": T0 + 51, "step": 99}))
    async with watched(run, at=171, size=SMALL) as (pilot, app):
        await pilot.press("d")
        await answered(pilot)
        assert sorted(asked) == [0, 1]
        assert "log ─ rank 1" in screen_text(app)  # the one that is behind


async def test_a_rank_that_a_signal_stopped_says_how_it_goes_on(tmp_path):
    """A real process, stopped by a signal, in the place of a rank."""
    process = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        run = trained(tmp_path)
        run.state("running", processes=(RankProcess(1, process.pid,
                                                    procs.start_ticks(process.pid)),))
        run.write(0, ("phase", 169, {"phase": "backward", "since": T0 + 50, "step": 99}))
        process.send_signal(signal.SIGSTOP)
        async with watched(run, lambda s: s.suspended, at=170, size=SMALL) as (pilot, app):
            assert app.run_screen.store.suspended == {1: process.pid}
            text = flat(screen_text(app))
            assert f"rank 1 was stopped by a signal: kill -CONT {process.pid} continues it" in text
            await pilot.press("d")
            await answered(pilot)
            told = [n.message for n in app._notifications]
            assert any("can't answer: kill -CONT" in m for m in told), told
    finally:
        process.kill()
        await process.wait()


async def test_who_waits_for_whom_is_in_the_banner(tmp_path):
    """A rank that works is no alarm: it may validate."""
    run = trained(tmp_path)
    waits = {"0": {"group": "0", "number": 37, "operation": "all_reduce", "size": "9 float",
                   "began": T0 + 50.0, "done": False, "point": False}}
    where = {"step": 99, "phase": "running", "since": T0 + 50.0}
    for rank, more in ((0, {"works": False, "place": "t.py:5 in step", "collectives": waits}),
                       (1, {"works": True, "place": "t.py:9 in evaluate"})):
        run.write(rank, ("stands", 75, where | more),
                  ("phase", 76, {"phase": "running", "since": T0 + 50, "step": 99}))
    async with watched(run, at=76) as (pilot, app):
        text = flat(screen_text(app))
        said = ("rank 0 waits for rank 1 in all_reduce #37 (9 float) at t.py:5 in step for "
                "26 s; rank 1 works at t.py:9 in evaluate")
        assert said in text
        assert f"! {said}" not in text
        run.write(1, ("stands", 77, where | {"works": False, "place": "t.py:9 in evaluate"}),
                  ("phase", 77, {"phase": "running", "since": T0 + 50, "step": 99}))
        app.at = 77
        await settled(pilot, lambda s: s.ranks[1].beat == T0 + 77)
        assert "! rank 0 waits for rank 1" in flat(screen_text(app))
        assert "rank 1 stands still at t.py:9 in evaluate" in flat(screen_text(app))


# --- A run on other machines, on this one's screen ---


def test_its_ranks_have_their_host_and_its_devices_are_not_taken_for_ours(home):
    """Nor are its processes; the list takes it up again when its mirror was killed; and a resume
    is said to start from the checkpoint over there."""
    make_hosts(home, "far")
    run = launch(from_dict(ENDLESS | {"devices": {"hosts": ["far:cpu:0"]}}))
    feed = RunsFeed()

    def line():
        return feed.refresh()[0][0]

    wait_for(lambda: line().step)
    assert (line().devices, line().pids) == (((row_keys.of("far", "cpu:0"), 0),), ())
    os.kill(run.state().pid or 0, signal.SIGKILL)
    wait_for(lambda: not run.supervised())
    verbs.look_at_all()  # as the list does, in a thread
    wait_for(lambda: line().live and run.supervised())
    assert look(run, run.plan(), 1, ()).state.live
    run.stop()
    assert over(run).state == "stopped"
    *_, folder = sorted(there(run, "far").glob("checkpoints/step-*/manifest.json"))
    step = int(folder.parent.name.removeprefix("step-"))
    assert step > 0
    options = ResumeOptions.read(run)
    assert f"It continues from its newest checkpoint on far, after step {step:,}." \
        in options.sentences()
    assert leftovers.describe(run.path)[1] == f"last checkpoint {folder.parent.name}"
