"""The run folder: states that are true, names that can't be mistaken, views of what ranks wrote."""

from __future__ import annotations

import fcntl
import json
import math
import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_engine.common import procs
from gpu_engine.common.errors import UserError
from gpu_engine.events.schema import KINDS, EventWriter, Tail, encode, number
from gpu_engine.events.view import Follower, RankView, progress
from gpu_engine.runs import folder as runs

from ..plans import plan


@pytest.fixture
def made(home):
    run, lock = runs.create("a run", 'name = "a run"\n', plan())
    yield run, lock
    try:
        os.close(lock)
    except OSError:
        pass


def test_a_new_run_is_queued_private_and_locked(made, home):
    run, _ = made
    assert run.state().state == "queued"
    assert run.supervised()
    for path in (home, run.path, run.path / "ranks"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path
    for name in ("spec.toml", "plan.json", "state.json", "lock"):
        assert stat.S_IMODE((run.path / name).stat().st_mode) == 0o600, name


def test_a_live_state_without_a_supervisor_is_lost(made):
    run, lock = made
    os.close(lock)
    state = run.state()
    assert (state.state, state.exit_code) == ("lost", 1)
    assert "supervisor" in state.reason


def test_a_reboot_is_told_from_a_death(made):
    from dataclasses import replace

    run, lock = made
    run.write_state(replace(run.state(), boot="another boot"))
    os.close(lock)
    assert "restarted" in run.state().reason


@pytest.mark.parametrize("content", ["", "{", "[]", '{"state": "dancing"}', "\0\0"])
def test_a_damaged_state_is_told_by_the_lock(made, content):
    run, lock = made
    (run.path / "state.json").write_text(content)
    assert run.state().state == "running"
    os.close(lock)
    assert run.state().state == "lost"
    assert "damaged" in run.state().reason


def test_a_final_state_stays_whatever_the_lock_says(made):
    from dataclasses import replace

    run, lock = made
    run.write_state(replace(run.state(), state="completed"))
    assert run.state().state == "completed"
    os.close(lock)
    assert run.state().state == "completed"


def test_looking_never_takes_the_lock(made):
    run, lock = made
    os.close(lock)
    for _ in range(3):
        run.state()
    fd = os.open(run.path / "lock", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(fd)


def test_runs_are_found_by_the_beginning_of_an_id(home):
    made = [runs.create("x", "", plan()) for _ in range(4)]
    for run, lock in made:
        os.close(lock)
        assert runs.find(run.id).path == run.path
        assert runs.find(str(run.path)).path == run.path
    assert {r.id for r in runs.all_runs()} == {r.id for r, _ in made}
    with pytest.raises(UserError, match=r"ambiguous|no run"):
        runs.find("")
    with pytest.raises(UserError, match="no run"):
        runs.find("zzzz")
    with pytest.raises(UserError, match="not a run folder"):
        runs.find("../../etc")


def test_an_unusable_home_is_said(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("GPU_PANEL_HOME", str(blocked))
    with pytest.raises(UserError, match="GPU_PANEL_HOME"):
        runs.create("x", "", plan())


def test_a_live_run_is_not_removed(made):
    run, lock = made
    with pytest.raises(UserError, match="stop it first"):
        run.remove()
    os.close(lock)
    run.remove()
    assert not run.path.exists()


def test_a_reused_pid_is_not_taken_for_the_process():
    ticks = procs.start_ticks(os.getpid())
    assert procs.alive(os.getpid(), ticks)
    assert not procs.alive(os.getpid(), ticks + 1)
    assert not procs.alive(None, None)


# --- events ------------------------------------------------------------------------------------

values = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
                      lambda s: st.lists(s, max_size=3)
                      | st.dictionaries(st.text(max_size=3), s, max_size=3), max_leaves=5)


@given(st.dictionaries(st.text(min_size=1, max_size=5).filter(lambda k: k not in ("t", "kind")),
                       values, max_size=4))
def test_every_event_is_one_line_of_strict_json(fields):
    line = encode("metric", fields)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    json.loads(line, parse_constant=lambda _: pytest.fail("not strict"))


def test_numbers_survive_even_when_not_finite():
    event = json.loads(encode("step", {"loss": math.nan, "losses": [1.5, math.inf, -math.inf]}))
    assert math.isnan(number(event["loss"]))
    assert [number(v) for v in event["losses"]] == [1.5, math.inf, -math.inf]
    assert number(True) is None
    assert number("1") is None


def test_a_tail_keeps_an_unfinished_line_until_it_is_whole(tmp_path):
    path = tmp_path / "e"
    tail = Tail(path)
    assert tail.read() == []
    whole = encode("step", {"step": 1})
    for i in range(len(whole)):
        with path.open("ab") as f:
            f.write(whole[i:i + 1])
        got = tail.read()
        assert len(got) == (1 if i == len(whole) - 1 else 0)
    assert tail.skipped == 0


def test_garbage_is_skipped_and_counted_and_a_shrunk_file_read_anew(tmp_path):
    path = tmp_path / "e"
    good = encode("step", {"step": 1})
    path.write_bytes(good + b"garbage\n\xff\xfe\n[1]\n{}\n" + b"[" * 100_000 + b"\n" + good)
    tail = Tail(path)
    assert [e["step"] for e in tail.read()] == [1, 1]
    assert tail.skipped == 5
    path.write_bytes(good)
    assert len(tail.read()) == 1
    replacement = tmp_path / "new"
    replacement.write_bytes(good * 50)
    replacement.replace(path)
    assert len(tail.read()) == 50


@given(st.lists(st.integers(1, 300), max_size=20), st.integers(16, 200))
def test_bounded_reads_lose_nothing(tmp_path_factory, sizes, limit):
    path = tmp_path_factory.mktemp("t") / "e"
    path.write_bytes(b"".join(encode("metric", {"x": "y" * n}) for n in sizes))
    tail, got = Tail(path), []
    for _ in range(10_000):
        got += tail.read(limit)
        if len(got) == len(sizes):
            break
    assert [len(e["x"]) for e in got] == sizes


def test_a_writer_after_a_torn_line_starts_a_new_one(tmp_path):
    path = tmp_path / "e"
    path.write_bytes(b'{"t":1,"kind":"st')
    writer = EventWriter(path)
    writer.write(encode("step", {"step": 2}))
    writer.close()
    tail = Tail(path)
    assert [e["step"] for e in tail.read()] == [2]
    assert tail.skipped == 1


@given(st.lists(st.tuples(st.sampled_from([*KINDS, "unknown", "fold", "__class__"]),
                          st.dictionaries(st.sampled_from(
                              ["step", "loss", "losses", "device", "phase", "since", "rank",
                               "gpu_peak", "total_steps", "message", "outcome", "attempt"]),
                              values)), max_size=8))
def test_a_view_takes_any_event_of_any_shape(events):
    view = RankView(0)
    for i, (kind, fields) in enumerate(events):
        view.fold({"t": float(i), **fields, "kind": kind})
    progress([view])


def test_a_follower_folds_all_ranks_and_a_restart_clears_the_error(made):
    run, _ = made
    writers = [EventWriter(run.events(r)) for r in (0, 1)]
    follower = Follower(run)
    for rank, w in enumerate(writers):
        w.write(encode("start", {"rank": rank, "attempt": 1, "device": ["cpu"]}, t=100),
                encode("schedule", {"total_steps": 40}, t=100),
                encode("step", {"step": 10, "losses": [3.0, 2.0], "samples_per_s": 5.0}, t=101),
                encode("step", {"step": 20, "loss": 1.0 + rank, "samples_per_s": 5.0}, t=102))
    assert len(follower.poll()) == 8
    p = follower.progress()
    assert (p.step, p.total_steps, p.loss, p.samples_per_s) == (20, 40, 1.5, 10.0)
    assert p.seconds_left == pytest.approx(2.0)
    writers[0].write(encode("error", {"type": "E", "message": "first"}),
                     encode("error", {"type": "E", "message": "second"}))
    follower.poll()
    assert follower.ranks[0].error["message"] == "first"
    writers[0].write(encode("start", {"rank": 0, "attempt": 2}))
    follower.poll()
    assert follower.ranks[0].error is None
    assert follower.ranks[0].attempt == 2
    writers[0].write(encode("schedule", {"total_steps": 15, "first_step": 12}))
    follower.poll()
    assert (follower.ranks[0].step, follower.ranks[0].loss) == (12, None)
    for w in writers:
        w.close()


@pytest.mark.parametrize(("told", "shown"), [
    ({"loss": 2.0, "losses": [3.0, 1.0]}, 1.0),
    ({"loss": 2.0, "loss_min": 0.5, "loss_max": 4.0, "loss_last": 0.5}, 0.5),
    ({"loss": 2.0, "loss_last": "nan"}, None), ({"loss": 2.0}, 2.0), ({}, None)])
def test_the_loss_of_a_rank_is_that_of_its_step(told, shown):
    view = RankView(0)
    view.fold({"t": 1.0, "kind": "step", "step": 9, "n": 2, "lr": 0.1, **told})
    assert view.loss == shown or (view.loss != view.loss and shown is None)
