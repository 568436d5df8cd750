"""The runs as the pane shows them, from folders written by the tests."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from dataclasses import replace

import pytest

from gpu_engine.common import paths
from gpu_engine.events import reader
from gpu_engine.runs import digest, disk_room, notes, waiting
from gpu_engine.runs import folder as runs
from gpu_engine.runs.create import create_run
from gpu_panel import readonly
from gpu_panel.launch import run_feed as runs_feed
from gpu_panel.launch.run_feed import RunsFeed
from gpu_panel.launch.run_line import layout, run_row

from .... import event_lines
from ....plans import plan

PLAN = plan()


def make(state="completed", name="toy", losses=(3.0, 2.0, 1.0), total=None, created=None):
    """A run folder whose lock is free."""
    run, lock = create_run(name, "", PLAN)
    os.close(lock)
    for rank in range(2):
        told = []
        told.append(event_lines.line("schedule", {"total_steps": total or len(losses)}))
        for step, loss in enumerate(losses, 1):
            told.append(event_lines.line("step", {"step": step, "n": 1, "loss": loss + rank,
                                                "samples_per_s": 10.0}))
        event_lines.append(run.events(rank), *told)
    run.write_state(runs.State(state, run.id, name, created or time.time(), ended=time.time()))
    return run


def text(line, width=120):
    """The row of a run, line by line."""
    row = run_row(line, layout([line], width))
    return "\n".join("".join(part for part, _ in each) for each in row.lines)


def test_a_finished_run_has_its_last_figures():
    make()
    (line,), older = RunsFeed().refresh()
    assert (line.state, line.step, line.total, line.loss, older) == ("completed", 3, 3, 1.5, 0)
    said = text(line)
    assert "✓ completed" in said
    assert "DDP×2" in said
    assert "3 of 3" in said
    assert "just now" in said


def test_every_run_is_listed_before_the_figures_are_read(monkeypatch):
    """Live ones first, then the newest, however old a live one is."""
    monkeypatch.setattr(runs_feed, "NEWEST", 2)
    run, lock = create_run("old", "", PLAN)
    try:
        run.write_state(runs.State("running", run.id, "old", 1.0))
        made = [make(name=f"toy{i}", created=1000.0 + i) for i in range(4)]
        feed = RunsFeed()
        with monkeypatch.context() as patch:
            patch.setattr(runs_feed, "SPELL", -1.0)
            lines, unread = feed.refresh()
            assert [line.name for line in lines] == ["old", "toy3", "toy2", "toy1", "toy0"]
            assert [line.state for line in lines] == ["running"] + ["completed"] * 4
            assert "…" in text(lines[1])
            assert unread == 4
            feed.first = (made[1].id,)
            patch.setattr(runs_feed, "time", StepClock())  # there is time for only one
            patch.setattr(runs_feed, "SPELL", 1.5)
            lines, unread = feed.refresh()
            assert [line.name for line in lines if line.loss] == ["toy1"]
            assert unread == 3
        lines, unread = feed.refresh()
        assert [line.loss for line in lines] == [None, 1.5, 1.5, 1.5, 1.5]
        assert unread == 0
    finally:
        os.close(lock)


class StepClock:
    """A clock that goes on by a second each time that it is read."""

    def __init__(self):
        self.now = time.monotonic()

    def monotonic(self):
        self.now += 1.0
        return self.now

    time = staticmethod(time.time)


@pytest.mark.parametrize("full", [False, True])
def test_a_run_that_stands_still_says_so_in_place_of_its_rate(monkeypatch, full):
    run, lock = create_run("toy", "", PLAN)
    try:
        run.write_state(runs.State("running", run.id, "toy", 1.0, started=2.0))
        now = time.time()
        for rank in range(2):
            event_lines.append(
                run.events(rank), event_lines.line("schedule", {"total_steps": 900}, t=now - 99),
                *(event_lines.line("step", {"step": step, "n": 1, "loss": 1.0,
                                            "samples_per_s": 10.0}, t=now - 80 + step)
                  for step in range(1, 5)),
                event_lines.line("phase", {"phase": "data" if rank else "backward",
                                           "since": now - 70, "step": 4}, t=now - 70 * full))
        if full:
            monkeypatch.setattr(disk_room, "of", lambda folder: disk_room.Room(str(folder), 4096))
        (line,), _ = RunsFeed().refresh()
        said = text(line, 160)
        assert ("no space left, so nothing is recorded" if full
                else "! rank 1 has stalled in data for 01:1") in said
        assert "left" not in said.replace("space left", "")
        assert (line.samples_per_s, line.steps_per_s, line.seconds_left) == (None, None, None)
    finally:
        os.close(lock)


def test_nobody_stands_still_while_the_past_is_read(monkeypatch):
    """A long run that is listed for the first time: its last figures are read only later."""
    read = reader.RunReader.read  # a look reads for some time, here one piece
    monkeypatch.setattr(reader.RunReader, "read",
                        lambda self, seconds: read(self, 0.0, 1 << 16))
    run, lock = create_run("toy", "", PLAN)
    try:
        run.write_state(runs.State("running", run.id, "toy", 1.0, started=2.0))
        now, steps = time.time(), 6_000
        for rank in range(2):
            event_lines.append(run.events(rank), *(
                event_lines.line("step", {"step": step, "n": 1, "loss": 1.0, "samples_per_s": 10.0},
                                 t=now - (steps - step) * 0.1) for step in range(1, steps + 1)))
        feed = RunsFeed()
        (line,), _ = feed.refresh()
        assert line.step is None or line.step < steps
        while line.step != steps:
            assert line.still is None
            (line,), _ = feed.refresh()
        (line,), _ = feed.refresh()
        assert line.still is None
        assert line.steps_per_s is not None
    finally:
        os.close(lock)


@pytest.mark.parametrize("state", ["running", "completed"])
def test_losses_that_a_restart_has_thrown_away_are_on_no_curve(state):
    run, lock = create_run("toy", "", PLAN)
    try:
        for first, last, loss in ((1, 20, 9.0), (6, 10, 1.0)):
            event_lines.append(run.events(0), *(event_lines.line(
                "step", {"step": step, "n": 1, "loss": loss}) for step in range(first, last + 1)))
        run.write_state(runs.State(state, run.id, "toy", 1.0, started=2.0, ended=3.0))
        (line,), _ = RunsFeed().refresh()
        assert list(dict.fromkeys(line.history)) == [9.0, 1.0]
    finally:
        os.close(lock)


@pytest.mark.parametrize(("asked", "name", "wanted"), [
    (None, "loss", 0.5), ("max:accuracy", "eval:accuracy", 0.75), ("min:speed", "speed", 2.0)])
def test_a_live_run_has_its_best_value_and_none_of_what_a_restart_threw_away(
        asked, name, wanted, monkeypatch):
    run, lock = create_run("toy", "", plan(spec={"run": {"best": asked}} if asked else {}))
    try:
        event_lines.append(run.events(0), *(event_lines.line(kind, fields) for kind, fields in (
            ("step", {"step": 1, "n": 1, "loss": 2.0}), ("eval", {"step": 1, "accuracy": 0.75}),
            ("metric", {"step": 1, "speed": 2.0}), ("step", {"step": 2, "n": 1, "loss": 0.5}),
            ("step", {"step": 3, "n": 1, "loss": 0.1}), ("eval", {"step": 3, "accuracy": 0.9}),
            ("metric", {"step": 3, "speed": 1.0}), ("step", {"step": 3, "n": 1, "loss": 1.0}),
            ("eval", {"step": 3, "accuracy": 0.25}), ("metric", {"step": 3, "speed": 3.0}))))
        feed = RunsFeed()
        (line,), _ = feed.refresh()
        assert (line.live, line.by.name, line.best) == (True, name, wanted)
        event_lines.append(run.events(0), *(event_lines.line(kind, fields) for kind, fields in (
            ("step", {"step": 4, "n": 1, "loss": float("nan")}),
            ("eval", {"step": 4, "accuracy": float("nan")}),
            ("metric", {"step": 4, "speed": float("nan")}))))
        assert feed.refresh()[0][0].best is None
    finally:
        os.close(lock)


def test_a_run_that_was_resumed_for_more_has_the_new_total():
    run = make(losses=[5.0] * 4000, total=2000)  # from the first attempt
    told = plan(spec={"task": {"use": "toy:Toy"}, "train": {"steps": 5000}})
    (run.path / "plan.json").write_text(json.dumps(told.to_dict()))
    (line,), _ = RunsFeed().refresh()
    assert (line.step, line.total) == (4000, 5000)


def test_a_finished_run_is_read_once_until_its_state_changes(monkeypatch):
    run = make()
    feed = RunsFeed()
    feed.refresh()
    with monkeypatch.context() as patch:
        patch.setattr(digest, "sample", lambda *_: pytest.fail("read again"))
        feed.refresh()
    run.write_state(runs.State("failed", run.id, "toy", 1.0, ended=2.0, reason="out of memory"))
    with monkeypatch.context() as patch:
        patch.setattr(runs_feed, "SPELL", -1.0)
        (line,), unread = feed.refresh()
    assert (line.state, line.reason) == ("failed", "out of memory")
    assert (line.step, line.loss, unread) == (3, 1.5, 1)  # as before until they are read again


def test_a_look_keeps_what_it_has_read_unless_it_may_only_look(monkeypatch):
    run = make()
    monkeypatch.setattr(readonly, "on", True)
    assert [line.loss for line in RunsFeed().refresh()[0]] == [1.5]
    assert not (run.path / digest.FILE).exists()
    monkeypatch.setattr(readonly, "on", False)
    (seen,), _ = RunsFeed().refresh()
    monkeypatch.setattr(digest, "sample", lambda *_, **__: pytest.fail("reads events"))
    (line,), _ = RunsFeed().refresh()  # another panel
    assert line == seen
    notes.change(run.path, lambda now: replace(now, note="good"))
    assert [line.note for line in RunsFeed().refresh()[0]] == ["good"]


def test_while_nothing_changes_it_is_the_very_same_list():
    older, newer = make(created=1000.0), make()
    feed = RunsFeed()
    feed.refresh()
    found, _ = feed.refresh()
    assert [line.id for line in found] == [newer.id, older.id]
    assert feed.refresh()[0] is found
    notes.change(older.path, lambda now: replace(now, note="good"))
    assert [line.note for line in feed.refresh()[0]] == ["", "good"]


def test_a_run_that_can_not_be_shown_is_logged_once_and_shown_when_it_can(monkeypatch):
    make()
    feed, logged = RunsFeed(), []
    monkeypatch.setattr(runs_feed.errors, "record", logged.append)
    with monkeypatch.context() as patch:
        patch.setattr(runs_feed.digests, "of", lambda *about: [][0])
        for _ in range(3):
            (line,), _ = feed.refresh()
    assert line.state == "unreadable"
    assert len(logged) == 1
    (line,), _ = feed.refresh()
    assert (line.state, line.step) == ("completed", 3)


def test_an_older_run_is_looked_at_again_when_the_folder_is_listed(monkeypatch):
    monkeypatch.setattr(runs_feed, "NEWEST", 1)
    made = [make(name=f"toy{i}", created=1000.0 - i) for i in range(3)]
    feed = RunsFeed()
    feed.refresh()
    for run in made:
        run.write_state(replace(run.state(), reason="another end"))
    assert [bool(line.reason) for line in feed.refresh()[0]] == [True, False, False]
    monkeypatch.setattr(runs_feed, "_AGAIN", 0.0)
    assert [bool(line.reason) for line in feed.refresh()[0]] == [True, True, True]


def test_damage_is_not_raised():
    run = make()
    run.events(0).write_bytes(b'{"t": 1, "kind": "step", "step": "x", "loss": []}\n\xff\xfe{{{\n')
    (run.path / "plan.json").write_text(json.dumps({"ranks": [7, {"rank": "a"}], "mode": []}))
    (line,), _ = RunsFeed().refresh()
    assert "completed" in text(line)


def test_a_live_run_names_the_processes_of_its_ranks_on_this_machine():
    run, lock = create_run("toy", "", replace(PLAN, node_rank=1))
    try:
        for rank, node in ((0, 0), (1, 1)):
            told = []
            told.append(event_lines.line("start", {"rank": rank, "local_rank": 0, "node": node,
                                                 "pid": 4000 + rank, "device": ["cpu"],
                                                 "world_size": 2, "attempt": 1}))
            event_lines.append(run.events(rank), *told)
        run.write_state(runs.State("running", run.id, "toy", time.time(), pid=os.getpid()))
        (line,), _ = RunsFeed().refresh()
        assert line.live
        assert line.pids == ((4001, 1),)  # pids of another machine are not ours
    finally:
        os.close(lock)


def waits(number, **more):
    """A run in the queue, as `gpu-engine run --queue` makes it."""
    run, lock = create_run("toy", "", PLAN)
    os.close(lock)
    entry = waiting.Entry(submitted=time.time() - 60, number=number, host=socket.gethostname(),
                          **{"count": 1, **more})
    waiting.write(run.path, entry)
    waiting.enter(run.path)
    return run


def supervised(run, reason):
    """Hold the lock of a waiting run, which says what it waits for. Returns its descriptor."""
    lock = os.open(run.path / "lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    run.write_state(replace(run.state(), pid=os.getpid(), reason=reason))
    return lock


def test_a_sweep_of_which_none_waits_goes_on_where_its_process_was_killed(monkeypatch):
    asked = []
    monkeypatch.setattr("gpu_engine.queue.serve.ensure", lambda: asked.append(1) or 1)
    make()
    feed = RunsFeed()
    feed.refresh()
    assert not asked
    (folder := paths.queue_folder()).mkdir(exist_ok=True)
    (folder / "s1a2b.lock").touch()
    for _ in range(2):
        feed.refresh()
    assert asked == [1], "and not again at once"
    assert feed.news == "The queue had stopped, and goes on with what waits in it"


def test_the_queue_stands_in_its_order_and_only_what_changed_is_read(monkeypatch):
    """Below what runs, above what has ended."""
    asked = []
    monkeypatch.setattr("gpu_engine.queue.serve.ensure", lambda: asked.append(1) or 3)
    old = make()
    third, first, second = waits(3), waits(1), waits(2)
    feed = RunsFeed()
    lines, _ = feed.refresh()
    assert [line.id for line in lines] == [first.id, second.id, third.id, old.id]
    assert [line.waits for line in lines] == [True, True, True, False]
    assert {line.reason for line in lines[:3]} == {
        "waits, but nothing starts it: gpu-engine queue has it go on"}
    assert asked == [1]
    assert feed.news == "The queue had stopped, and goes on with what waits in it"

    read, real = [], runs_feed.digests.of
    monkeypatch.setattr(runs_feed.digests, "of",
                        lambda run, *more: read.append(run.id) or real(run, *more))
    feed.refresh()
    assert read == []
    held = [supervised(first, "waits for GPU 0, which is held by run 77aa"),
            supervised(second, "waits for GPU 1")]
    lines, _ = feed.refresh()
    assert set(read) == {first.id, second.id}
    assert [line.reason for line in lines[:2]] == [
        "waits for GPU 0, which is held by run 77aa", "waits for GPU 1"]
    said = [part for line in run_row(lines[0], layout(lines, 160)).lines for part in line]
    assert ("waits for GPU 0, which is held by run 77aa", "dim") in said

    waiting.write(third.path, replace(waiting.read(third.path), priority=1))
    waiting.enter(third.path)
    second.write_state(runs.State("running", second.id, "toy", time.time(), pid=os.getpid()))
    waiting.leave(second.path)
    os.close(held[0])  # its supervisor was killed
    first.stop()
    read.clear()
    lines, _ = feed.refresh()
    assert set(read) == {first.id, second.id, third.id}
    assert [(line.id, line.state) for line in lines] == [
        (second.id, "running"), (third.id, "queued"), (first.id, "stopped"), (old.id, "completed")]
    assert lines[2].reason == "while it waited for its turn"
    os.close(held[1])
    assert asked == [1]  # no more than every half minute
