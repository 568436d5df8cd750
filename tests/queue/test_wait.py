"""Runs that wait on CPU slots: real supervisors, unless a test says otherwise."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_engine.code import store
from gpu_engine.common import paths
from gpu_engine.common.errors import SpecError, UserError
from gpu_engine.common.files import read_json, take_lock
from gpu_engine.common.paths import queue_folder
from gpu_engine.devices import leases
from gpu_engine.queue import serve, submit, wait
from gpu_engine.queue.submit import moment
from gpu_engine.queue.turns import Start, When, decide
from gpu_engine.runs import waiting
from gpu_engine.runs.create import lock_of
from gpu_engine.spec.read import from_dict

from ..command_line import called
from ..conftest import wait_for
from .kit import hold, over, queue, reason, state


def test_one_after_the_other_and_who_is_moved_is_next(line):
    with hold():
        a, b, c = (queue("sh", "-c", f"echo {n} >> ran") for n in "abc")
        wait_for(lambda: "waits for CPU 0, which is held by run 77aa of" in reason(a))
        assert state(a) == "queued"
        wait_for(lambda: reason(b) == f"waits for CPU 0, for which run {a.id} comes first")
        serve.move(c, "first")
        assert [w.run for w in serve.line()] == [c, a, b]
        serve.prioritise(a, 1)
        serve.move(c, "last")
        assert [w.run for w in serve.line()] == [a, b, c]
        serve.move(b, "last")
        wait_for(lambda: a.id in reason(c))
        # A place is no reason for a priority: c stays last, as low as it is.
        assert [w.entry.priority for w in serve.line()] == [1, 0, 0]
        serve.move(c, "last")
        assert [(w.run, w.entry.priority) for w in serve.line()] == [(a, 1), (b, 0), (c, 0)]
        serve.move(c, "first")
        assert next((w.run, w.entry.priority) for w in serve.line()) == (c, 1)
        serve.move(c, "last")
        serve.move(b, "last")
    over(a, b, c)
    assert Path("ran").read_text().split() == ["a", "c", "b"]
    started = [r.state().attempts[0].started for r in (a, c, b)]
    ended = [r.state().ended for r in (a, c, b)]
    assert started == sorted(started)
    assert all(s >= e for s, e in zip(started[1:], ended, strict=False))
    assert not (a.path / waiting.FILE).exists()
    assert waiting.ids(queue_folder()) == []
    assert leases.waiting(paths.leases_folder()) == []


def test_what_is_stopped_waits_no_longer_and_the_next_moves_up(line):
    with hold():
        a, b = queue(), queue("true", when=When(priority=-1))
        alone = queue(begin=False, slot=1)  # without a supervisor
        wait_for(lambda: reason(b).endswith("comes first"))
        for run in (a, alone):
            run.stop()
            assert (state(run), reason(run)) == ("stopped", "while it waited for its turn")
            with pytest.raises(UserError, match="not running"):
                run.stop()
            with pytest.raises(UserError, match="does not wait"):
                serve.move(run, "first")
        wait_for(lambda: "77aa" in reason(b))
    over(a, b)
    assert state(b) == "completed"
    a.remove()


def test_a_run_after_another_and_one_at_a_time(line):
    bad = queue("false")
    good = queue("true", slot=1)
    after_bad = queue(when=When(after=bad.id), slot=1)
    after_good = queue(when=When(after=good.id), slot=1)
    behind = queue(when=When(after=after_bad.id), slot=1)
    late = queue(when=When(begin=time.time() + 3600))
    over(bad, after_good, behind)
    assert state(after_good) == "completed"
    assert state(bad) == "failed"
    assert reason(after_bad) == f"run {bad.id}, which it was to follow, failed"
    assert state(after_bad) == "stopped"
    assert reason(behind).endswith("was stopped")
    wait_for(lambda: reason(late).startswith("waits until "))
    with pytest.raises(UserError, match=f"--after {bad.id}: run {bad.id}, .* failed"):
        queue(when=When(after=bad.id))
    assert [w.run for w in serve.line()] == [late]


def git(*words):
    subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *words], check=True,
                   capture_output=True)


def test_it_runs_the_code_and_environment_of_its_submission_with_the_data_of_today(
        line, monkeypatch):
    git("init", "-q")
    Path(".gitignore").write_text("data/\n")
    Path("committed.sh").write_text("echo one\n")
    git("add", ".")
    git("commit", "-qm", "x")
    Path("committed.sh").write_text("echo two\n")  # not committed
    Path("new.sh").write_text(f"sh committed.sh; cat data/x; sh {Path('committed.sh').absolute()}"
                              "; echo $WORD; pwd\n")
    Path("data").mkdir()
    Path("data/x").write_text("data-1\n")
    monkeypatch.setenv("WORD", "secret-word")
    with hold(), hold(1):
        unchanged, run = queue("sh", "new.sh"), queue("sh", "new.sh", slot=1)
        monkeypatch.setenv("WORD", "later")
        both = [f.read_text(errors="replace") for folder in (run.path, queue_folder())
                for f in folder.rglob("*") if f.is_file()]
        assert not any("secret-word" in text for text in both)  # it is nowhere on the disk
        Path("committed.sh").write_text("echo three\n")
        Path("data/x").write_text("data-2\n")
        wait_for(lambda: "77aa" in reason(run))
        Path("committed.sh").write_text("echo two\n")
        wait_for(lambda: "77aa" in reason(unchanged))
        Path("committed.sh").write_text("echo three\n")
    over(run)
    words = run.output(0).read_text().split()
    assert words[:2] == ["two", "data-2"]
    copy = Path(words[-1])
    assert copy.parent == paths.home() / "code"
    assert words[3] == "secret-word"
    over(unchanged)
    # The copy goes a day after the last run that used it, and its links with it, not the data.
    os.utime(copy.with_name(f"{copy.name}.list"), (0, 0))
    store._remove_old()
    assert (copy / "data").is_symlink()
    for one in (run, unchanged):
        one.remove()
    store._remove_old()
    assert not copy.exists()
    assert Path("data/x").read_text() == "data-2\n"


def test_code_that_a_run_waits_for_stays_however_long_that_takes(line):
    git("init", "-q")
    Path("x.sh").write_text("echo one\n")
    with hold():
        run = queue("sh", "x.sh")
        for kept in (paths.home() / "code").glob("*.list"):
            os.utime(kept, (0, 0))
        Path("x.sh").write_text("echo two\n")
        later = queue("sh", "x.sh", slot=1)  # keeps other code, and clears away what is old
    over(run, later)
    assert state(run) == "completed", reason(run)
    assert run.output(0).read_text() == "one\n"


def test_who_takes_the_device_between_the_look_and_the_lock_keeps_it(here, monkeypatch):
    run, others, times = queue(begin=False), [], []

    def decided(*args, **more):
        found = decide(*args, **more)
        if isinstance(found, Start) and not times:
            others.append(hold())
            times.append(True)
        elif others and not isinstance(found, Start):
            others.pop().close()
        return found

    monkeypatch.setattr(wait.turns, "decide", decided)
    with wait.Waiter(run).take_turn():
        assert others == []
        (holder,) = leases.holders(paths.leases_folder()).values()
        assert (holder.run, holder.others) == (run.id, ())


def test_what_no_longer_fits_fails_and_does_not_try_again(line):
    Path("t.sh").write_text("#!/bin/sh\n")
    Path("t.sh").chmod(0o755)
    with hold():
        run = queue(str(Path("t.sh").absolute()))
        wait_for(lambda: "77aa" in reason(run))
        Path("t.sh").unlink()
    over(run)
    said = run.state()
    assert said.state == "failed"
    assert "could not start when its turn came" in said.reason
    assert "there is no file" in said.cause.message
    assert serve.line() == []


def test_a_start_that_breaks_is_said(here, monkeypatch):
    def breaks(*_, **__):
        raise RuntimeError("a fault of ours")

    run = queue(begin=False)
    monkeypatch.setattr(wait, "prepare", breaks)
    assert wait.Waiter(run).take_turn() is None
    assert state(run) == "failed"
    assert "a fault of ours" in reason(run)
    assert leases.holders(paths.leases_folder()) == {}


def test_on_a_full_disk_it_waits_on_and_starts_when_there_is_room(here, monkeypatch):
    run, real, said = queue(begin=False), wait.disk_room.require, []

    def full(path):
        said.append(read_json(run.path / "state.json")["reason"])
        if len(said) < 3:
            raise UserError("the disk is full")
        real(path)

    monkeypatch.setattr(wait.disk_room, "require", full)
    monkeypatch.setattr(wait, "PAUSES", (0.1,))
    taken = wait.Waiter(run).take_turn()
    assert taken is not None
    taken.close()
    assert said == ["starts on CPU 0"] * 3


def test_who_can_not_start_yet_lets_the_next_go_first(here):
    first, second = queue(begin=False), queue(begin=False)
    lock = lock_of(first.path)
    assert take_lock(lock)  # it has a supervisor, which waits to try again
    waiter = wait.Waiter(second)
    assert waiter._look() is None
    wait.Waiter(first)._try_later("for devices that others took meanwhile")
    waiter = wait.Waiter(second)
    taken = waiter._look()
    os.close(lock)
    assert taken is not None
    taken.close()


def test_what_waiting_would_not_cure_is_refused(line):
    before = sorted(paths.runs_folder().glob("*"))
    for data, words in (
            ({"devices": {"hosts": ["gpu1"]}}, "say which devices of gpu1 to wait for"),
            ({"parallel": {"mode": "multinode", "nodes": 2}}, "would wait for this one in vain"),
            ({"devices": {"ids": ["cpu:0"], "free_gib": 3.0}}, "goes with devices.pick"),
            ({"devices": {"ids": ["cpu:77"]}}, "no such device"),
            ({"task": {"command": ["no-such-program-x"]}}, "no such program")):
        with pytest.raises(SpecError, match=words) as caught:
            submit.submit(from_dict({"name": "t", "task": {"command": ["true"]},
                                     "devices": {"ids": ["cpu:0"]}} | data), When(), begin=False)
        assert len(caught.value.problems) == 1
    assert sorted(paths.runs_folder().glob("*")) == before


def test_times_as_people_give_them():
    now = time.mktime((2026, 11, 22, 12, 0, 30, 0, 0, -1))
    for text, after in (("22:00", 10 * 3600 - 30), ("12:00", 86400 - 30), ("+90m", 5400),
                        ("+1.5 h", 5400), ("2026-11-23 12:00", 86400 - 30), ("+2d", 2 * 86400)):
        assert moment(text, now) == pytest.approx(now + after), text
    for text, words in (("soon", "no time that is understood"), ("25:00", "understood"),
                        ("2026-11-01", "passed"), ("+999d", "more than a year")):
        with pytest.raises(UserError, match=words):
            moment(text, now)


def test_a_file_that_the_run_before_is_to_write_need_not_be_there_yet(home):
    first = queue("sh", "-c", "echo text > made.txt", begin=False)
    waits = from_dict({"task": {"use": "gpu_engine.tasks.bytes_gpt:BytesGPT",
                                "params": {"text": "made.txt"}}, "devices": {"ids": ["cpu:0"]}})
    with pytest.raises(SpecError, match="no such file"):
        submit.submit(waits, When(), begin=False)
    assert state(submit.submit(waits, When(after=first.id), begin=False)) == "queued"


def test_the_list_of_runs_goes_on_with_a_queue_that_nothing_starts(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = queue("true", begin=False)
    assert reason(run) == "waits, but nothing starts it: gpu-engine queue has it go on"
    assert run.id in called("runs").stdout
    over(run)
    assert state(run) == "completed"


def test_nothing_is_started_here_for_runs_that_wait_on_another_machine(line):
    run = queue(begin=False)
    waiting.write(run.path, replace(waiting.read(run.path), host="elsewhere"))
    assert serve.ensure() == 0
    assert waiting.ids(queue_folder()) == [run.id]


def test_what_a_killed_supervisor_waited_for_is_not_said_of_the_next(line, monkeypatch):
    run = queue(begin=False)
    run.write_state(replace(run.state(), pid=os.getpid(), reason="waits for GPU 0, as was"))
    monkeypatch.setattr(serve, "supervise", lambda run, lock: held.append(lock))
    held: list[int] = []
    serve.ensure()
    assert (state(run), reason(run), run.state().pid) == ("queued", waiting.FIRST, None)
    os.close(held[0])
