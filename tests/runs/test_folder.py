"""The run folder: states that are true, names that can't be mistaken."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from gpu_engine.common.errors import UserError
from gpu_engine.common.paths import queue_folder, runs_folder
from gpu_engine.runs import folder as runs
from gpu_engine.runs import follow, waiting
from gpu_engine.runs.create import create_run, reopen_run

from .. import event_lines
from ..plans import plan


@pytest.fixture
def made():
    run, lock = create_run("a run", 'name = "a run"\n', plan())
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


@pytest.mark.parametrize(("spec", "now", "heard"), [
    ({"task": {"command": ["x"]}}, False, "SIGINT"), ({}, False, "SIGTERM"),
    ({"task": {"command": ["x"]}, "run": {"stop_signal": "SIGUSR1"}}, False, "SIGUSR1"),
    ({"task": {"command": ["x"]}}, True, "")])
def test_what_a_lost_run_left_gets_the_signal_of_a_stop(tmp_path, spec, now, heard):
    run, lock = create_run("a run", "", plan(spec=spec))
    os.close(lock)
    left = subprocess.Popen([sys.executable, "-c", """if True:
        import signal, sys
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(each, lambda number, _: sys.exit(print(signal.Signals(number).name)))
        print("up", flush=True)
        signal.pause()"""], stdout=subprocess.PIPE, text=True,
        env=os.environ | {"GPU_PANEL_RUN": str(run.path)})
    reaped = threading.Thread(target=left.wait)
    assert left.stdout.readline() == "up\n"
    reaped.start()
    run.stop(now=now)
    reaped.join()
    with left.stdout as said:
        assert said.read().strip() == heard
    assert (left.returncode == -signal.SIGKILL) is now


def test_a_run_that_ends_while_it_is_looked_at_is_not_lost(made, monkeypatch):
    """Its state is read, it ends, and its lock is free."""
    run, lock = made

    def ends(self: runs.Run) -> bool:
        run.write_state(runs.State("completed", run.id, "x", 1.0))
        os.close(lock)
        return False

    monkeypatch.setattr(runs.Run, "_held", ends)
    assert run.state().state == "completed"


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


def test_another_attempt_waits_for_a_supervisor_that_is_about_to_end(made):
    """The lock is free a moment after state.json says how the run ended."""
    run, lock = made
    run.write_state(runs.State("stopped", run.id, "x", 1.0))
    supervisor = threading.Timer(0.2, os.close, (lock,))
    supervisor.start()
    again = reopen_run(run, "", plan(1, mode="single"))
    supervisor.join()
    assert run.state().attempt == 2
    assert run.supervised()
    os.close(again)


def test_another_attempt_notes_that_the_one_before_was_lost(made):
    run, lock = made
    run.write_state(runs.State("running", run.id, "x", 1.0, attempts=(runs.AttemptRecord(1, 2.0),)))
    os.close(lock)
    waiting.write(run.path, waiting.Entry(submitted=1.0, number=1.0, host="h"))
    waiting.enter(run.path)  # killed when it had ended, and before it left the line
    os.close(reopen_run(run, "", plan(1, mode="single")))
    assert [a.outcome for a in run.state().attempts] == ["lost"]
    assert waiting.read(run.path) is None
    assert waiting.ids(queue_folder()) == []


def test_a_run_that_was_training_waits_no_longer_whatever_was_left_in_the_line(made):
    run, lock = made
    waiting.write(run.path, waiting.Entry(submitted=1.0, number=1.0, host="h"))
    os.close(lock)
    assert run.state().state == "queued"
    run.write_state(runs.State("running", run.id, "x", 1.0))
    assert run.state().state == "lost"


def test_a_rank_of_which_nothing_was_known_is_followed_once_it_appears(made, monkeypatch):
    run, now = made[0], [100.0]
    monkeypatch.setattr(follow, "time", SimpleNamespace(monotonic=lambda: now[0]))
    follower = follow.Follower(run)
    assert (follower.poll(), list(follower.ranks)) == ([], [0, 1])
    event_lines.append(run.events(5), event_lines.line("step", {"step": 3}))
    now[0] += 2.0
    assert [rank for rank, _ in follower.poll()] == [5]


def test_what_a_killed_launcher_has_begun_is_removed_unless_it_may_be_alive_elsewhere():
    new, old, own = (runs_folder() / f".new-ab{n}-{pid}" for n, pid in (
        (0, 1 << 30), (1, 1 << 30), (2, os.getpid())))
    for folder in (new, old, own):
        folder.mkdir(parents=True)
    for folder in (old, own):
        os.utime(folder, (1, 1))
    os.close(create_run("x", "", plan())[1])
    assert [f.exists() for f in (new, old, own)] == [True, False, True]


def test_another_attempt_is_refused_while_the_run_is_live(made):
    with pytest.raises(UserError, match="is running"):
        reopen_run(made[0], "", plan(1, mode="single"))


def test_looking_never_takes_the_lock(made):
    run, lock = made
    os.close(lock)
    for _ in range(3):
        run.state()
    fd = os.open(run.path / "lock", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(fd)


def test_runs_are_found_by_the_beginning_of_an_id():
    made = [create_run("x", "", plan()) for _ in range(4)]
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
    with monkeypatch.context() as patch:
        patch.setenv("GPU_PANEL_HOME", str(blocked))
        with pytest.raises(UserError, match="GPU_PANEL_HOME"):
            create_run("x", "", plan())


def test_a_live_run_is_not_removed(made):
    run, lock = made
    with pytest.raises(UserError, match="stop it first"):
        run.remove()
    os.close(lock)
    run.remove()
    assert not run.path.exists()
