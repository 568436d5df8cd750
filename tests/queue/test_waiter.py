"""A line of real runs on CPU slots: `Waiter.turn` is called here, the runs are real processes."""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_engine.code import store, submitted
from gpu_engine.common import paths
from gpu_engine.common.errors import SpecError, UserError
from gpu_engine.common.files import write_json
from gpu_engine.common.paths import queue_folder
from gpu_engine.queue import change, devices, starts, submit
from gpu_engine.queue.devices import Devices
from gpu_engine.queue.submit import When
from gpu_engine.queue.words import moment
from gpu_engine.runs import waiting
from gpu_engine.spec.read import from_dict

from ..command_line import called
from ..conftest import gpus, wait_for
from .kit import hold, queue, spec, state, turn_until


def test_one_after_the_other_and_who_is_moved_is_next(line):
    with hold():
        a, b, c = (queue("sh", "-c", f"echo {n} >> ran") for n in "abc")
        turn_until(line, lambda: "77aa" in (a.state().reason or ""))
        assert state(a) == "queued"
        assert "waits for CPU 0, which is held by run 77aa of" in a.state().reason
        assert b.state().reason == f"waits for CPU 0, for which run {a.id} comes first"
        change.move(c, "first")
        change.move(a, "down")
        assert [w.run for w in change.line()] == [c, b, a]
        change.prioritise(a, 1)
        change.move(b, "last")
        assert [w.run for w in change.line()] == [a, c, b]
        change.move(b, c.id)
        assert [w.run for w in change.line()] == [a, b, c]
        change.move(c, "up")
        turn_until(line, lambda: a.id in c.state().reason)
    turn_until(line, lambda: state(b) == "completed")
    assert Path("ran").read_text().split() == ["a", "c", "b"]
    started = [r.state().attempts[0].started for r in (a, c, b)]
    ended = [r.state().ended for r in (a, c, b)]
    assert started == sorted(started)
    assert all(s >= e for s, e in zip(started[1:], ended, strict=False))
    assert not (a.path / waiting.FILE).exists()
    line.turn()
    assert waiting.ids(queue_folder()) == []


def test_what_is_stopped_waits_no_longer_and_the_next_moves_up(line, monkeypatch):
    with hold():
        a, b = queue(), queue("true", when=When(priority=-1))
        turn_until(line, lambda: b.state().reason.endswith("comes first"))
        with (a.path / "lock").open() as looking, monkeypatch.context() as patch:
            fcntl.flock(looking, fcntl.LOCK_SH)  # as the panel, which reads its state
            patch.setattr(time, "sleep", lambda _: looking.close())
            a.stop()
        assert state(a) == "stopped"
        assert a.state().reason == "stopped while it waited for its turn"
        with pytest.raises(UserError, match="not running"):
            a.stop()
        with pytest.raises(UserError, match="does not wait"):
            change.move(a, "first")
        turn_until(line, lambda: "77aa" in b.state().reason)
    turn_until(line, lambda: state(b) == "completed")
    a.remove()


def test_a_run_after_another_and_one_at_a_time(line):
    bad = queue("false")
    good = queue("true", slot=1)
    after_bad = queue(when=When(after=bad.id), slot=1)
    after_good = queue(when=When(after=good.id), slot=1)
    behind = queue(when=When(after=after_bad.id), slot=1)
    late = queue(when=When(begin=time.time() + 3600))
    turn_until(line, lambda: state(after_good) == "completed" and not behind.state().live)
    assert state(bad) == "failed"
    assert after_bad.state().reason == f"run {bad.id}, which it was to follow, failed"
    assert state(after_bad) == "stopped"
    assert behind.state().reason.endswith("was stopped")
    assert late.state().reason.startswith("waits until ")
    with pytest.raises(UserError, match=f"--after {bad.id}: run {bad.id}, .* failed"):
        queue(when=When(after=bad.id))
    assert [w.run for w in change.line()] == [late]


def git(*words):
    subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *words], check=True,
                   capture_output=True)


def test_it_runs_the_code_of_its_submission_with_the_data_of_today(line, monkeypatch):
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
    with hold():
        unchanged, run = queue("sh", "new.sh"), queue("sh", "new.sh", slot=1)
        monkeypatch.setenv("WORD", "later")
        assert run.path.is_dir()
        both = [f.read_text(errors="replace") for r in (unchanged, run)
                for f in r.path.rglob("*") if f.is_file()]
        assert not any("secret-word" in text for text in both)  # only in the queue's own folder
        [kept] = queue_folder().glob("environ-*")
        assert kept.stat().st_mode & 0o777 == 0o600
        assert queue_folder().stat().st_mode & 0o777 == 0o700
        Path("committed.sh").write_text("echo three\n")
        Path("data/x").write_text("data-2\n")
        turn_until(line, lambda: state(run) == "completed")
        words = run.output(0).read_text().split()
        assert words[:2] == ["two", "data-2"]
        copy = Path(words[-1])
        assert copy.parent == paths.home() / "code"
        assert words[3] == "secret-word"
        Path("committed.sh").write_text("echo two\n")
    turn_until(line, lambda: state(unchanged) == "completed")
    assert unchanged.output(0).read_text().split() == [
        "two", "data-2", "two", "secret-word", str(Path.cwd())]
    # The copy goes a day after the last run that used it, and its links with it, not the data.
    os.utime(copy.with_name(f"{copy.name}.list"), (0, 0))
    store._remove_old()
    assert (copy / "data").is_symlink()
    for one in (run, unchanged):
        one.remove()
    store._remove_old()
    assert not copy.exists()
    assert Path("data/x").read_text() == "data-2\n"


def test_an_environment_is_deleted_with_the_last_run_that_needs_it(line, monkeypatch):
    def kept():
        return {path.name for path in queue_folder().glob("environ-*")}

    one, other = queue("true"), queue("true")
    monkeypatch.setenv("WORD", "secret-word")
    prepared = submit.prepare(spec())
    elsewhere = queue("true")
    waiting.write(elsewhere.path, replace(waiting.read(elsewhere.path), host="another machine"))
    monkeypatch.setenv("WORD", "later")
    assert len(kept()) == 2
    turn_until(line, lambda: state(one) == state(other) == "completed")
    line.turn()
    assert kept() == {waiting.read(elsewhere.path).environ}
    elsewhere.stop()
    line.turn()
    assert not kept()
    late = submit.submit(spec("sh", "-c", "echo $WORD"), When(), prepared, begin=False)
    turn_until(line, lambda: state(late) == "completed")
    assert late.output(0).read_text().split() == ["secret-word"]
    line.run()
    assert not kept()


def test_a_second_start_finds_the_same_copy(line):
    """The first came too late for its devices, but has planned to run in the copy."""
    git("init", "-q")
    Path("part").mkdir()
    Path("part/t.sh").write_text("echo one\n")
    os.chdir("part")  # the fixture has changed the folder, and puts it back
    with hold():
        run = queue("sh", "t.sh")
        Path("t.sh").write_text("echo two\n")
        entry, asked = waiting.read(run.path), spec("sh", "t.sh")
        first = submitted.place_of(run, asked, entry)
        assert (first[0].name, first[0].parent.parent) == ("part", paths.home() / "code")
        write_json(run.path / "plan.json",
                   replace(run.require_plan(), cwd=str(first[0])).to_dict())
        assert submitted.place_of(run, asked, entry) == first
    turn_until(line, lambda: not run.state().live)
    assert run.output(0).read_text() == "one\n"


def test_what_no_longer_fits_fails_and_does_not_try_again(line):
    Path("t.sh").write_text("#!/bin/sh\n")
    Path("t.sh").chmod(0o755)
    run = queue(str(Path("t.sh").absolute()))
    Path("t.sh").unlink()
    turn_until(line, lambda: not run.state().live)
    said = run.state()
    assert said.state == "failed"
    assert "could not start when its turn came" in said.reason
    assert "there is no file" in said.cause.message
    assert change.line() == []


def test_a_start_that_breaks_is_tried_a_few_times_and_then_said(line, monkeypatch):
    run = queue()
    (run.path / "spec.toml").write_bytes(b"\0")
    monkeypatch.setattr(starts, "PAUSES", (0.1,))
    turn_until(line, lambda: not run.state().live)
    assert run.state().state in ("failed", "stopped")
    assert "could not" in run.state().reason


def test_any_number_of_moves_between_two_runs(line):
    with hold():
        a, b, c, d = (queue() for _ in range(4))
        for mover, still in ((c, d), (d, c)) * 30:
            change.move(mover, b.id)
            order = [w.run for w in change.line()]
            assert order.index(mover) == order.index(b) - 1
            change.move(b, still.id)
            order = [w.run for w in change.line()]
            assert order.index(b) == order.index(still) - 1
        assert order[0] == a


def test_a_clock_that_is_set_back_changes_no_order(line, monkeypatch):
    with hold():
        first = queue()
        with monkeypatch.context() as patch:
            patch.setattr(submit.time, "time", lambda: 1e9)
            second = queue()
        assert [w.run for w in change.line()] == [first, second]


def test_what_waiting_would_not_cure_is_refused(line):
    before = sorted(paths.runs_folder().glob("*"))
    for data, words in (
            ({"devices": {"hosts": ["gpu1"]}}, "waits for devices of this machine only"),
            ({"parallel": {"mode": "multinode", "nodes": 2}}, "would wait for this one in vain"),
            ({"devices": {"ids": ["cpu:0"], "free_gib": 3.0}}, "goes with devices.pick"),
            ({"devices": {"ids": ["cpu:77"]}}, "no such device"),
            ({"task": {"command": ["no-such-program-x"]}}, "no such program")):
        with pytest.raises(SpecError, match=words) as caught:
            submit.submit(from_dict({"name": "t", "task": {"command": ["true"]},
                                     "devices": {"ids": ["cpu:0"]}} | data), When(), begin=False)
        assert len(caught.value.problems) == 1
    with pytest.raises(UserError, match="--free-for"):
        queue(when=When(free_for=-1.0))
    assert sorted(paths.runs_folder().glob("*")) == before


CHECKS = """
from dataclasses import dataclass

from gpu_engine import Task

@dataclass
class Own(Task):
    width: int = 4

    def check(self):
        if self.width % 2:
            yield "width", "is odd"
"""


def test_a_task_that_checks_its_parameters_does_so_when_it_is_submitted(line):
    from gpu_engine.sweep import grid, values
    from gpu_engine.sweep import submit as sweep

    Path("own.py").write_text(CHECKS)
    axes = [values.parse("task.params.width=4,5,7")]
    own = spec(task={"use": "own.py:Own", "params": {"width": 5}})
    for put in (lambda: submit.submit(own, When(), begin=False),
                lambda: sweep.submit(grid.members(own, axes, 1), When(), "t")):
        with pytest.raises(SpecError, match="width = 5: is odd"):
            put()
        assert not change.line()
    even = replace(own, task=replace(own.task, params={"width": 4}))
    assert state(submit.submit(even, When(), begin=False)) == "queued"


def test_times_as_people_give_them():
    now = time.mktime((2026, 11, 22, 12, 0, 30, 0, 0, -1))
    for text, after in (("22:00", 10 * 3600 - 30), ("12:00", 86400 - 30), ("+90m", 5400),
                        ("+1.5 h", 5400), ("tomorrow 6:30", 18.5 * 3600 - 30),
                        ("today 12:01", 30), ("2026-11-23 12:00", 86400 - 30), ("+2d", 2 * 86400)):
        assert moment(text, now) == pytest.approx(now + after), text
    for text, words in (("soon", "no time that is understood"), ("25:00", "understood"),
                        ("2026-11-01", "passed"), ("today 3:00", "passed"),
                        ("+999d", "more than a year")):
        with pytest.raises(UserError, match=words):
            moment(text, now)


def test_a_file_that_the_run_before_is_to_write_need_not_be_there_yet(home):
    first = queue("sh", "-c", "echo text > made.txt")
    waits = from_dict({"task": {"use": "gpu_engine.tasks.bytes_gpt:BytesGPT",
                                "params": {"text": "made.txt"}}, "devices": {"ids": ["cpu:0"]}})
    with pytest.raises(SpecError, match="no such file"):
        submit.submit(waits, When(), begin=False)
    assert state(submit.submit(waits, When(after=first.id), begin=False)) == "queued"


def test_the_list_of_runs_goes_on_with_a_queue_that_nothing_starts(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = queue("true")
    done = called("runs")
    assert run.id in done.stdout
    wait_for(lambda: run.state().state == "completed" and not run.supervised())


def test_only_so_many_start_at_once(line, monkeypatch):
    monkeypatch.setattr(starts, "MOST", 1)
    begun = []
    monkeypatch.setattr(starts.Starts, "begin", lambda self, name, entry, ids: (
        begun.append(name), self.starting.update({name: type("S", (), {"devices": ids})()})))
    queue(), queue(slot=1)
    try:
        line.turn()
        assert len(begun) == 1
    finally:
        line.starts.starting.clear()


def test_a_device_is_free_since_it_was_last_held():
    here = Devices(cpu=True)
    (slot, since) = next((d.id, d.since) for d in here.now({}, None).values() if d.free)
    assert here.now({slot: "77aa"}, None)[slot].since is None
    assert here.now({}, None)[slot].since > since


def test_a_device_that_comes_is_found_while_another_run_takes_any(monkeypatch):
    there = [gpus(1)]
    monkeypatch.setattr(devices, "_all_gpus", lambda: there[0])
    monkeypatch.setattr(devices, "_FIND_AGAIN", -1.0)
    here = Devices(cpu=False)
    monkeypatch.setattr(here, "_read", lambda wanted: None)
    uuid = gpus(2).devices[1].uuid
    assert here.id_of(uuid) == uuid
    there[0] = gpus(2)
    # As Waiter does each turn, with a run that names it and one that takes any.
    here.id_of(uuid)
    assert "1" in here.now({}, None)


def test_what_is_read_goes_on_while_a_device_is_looked_for_that_is_gone(monkeypatch):
    """For how long another was free counts from then on."""
    closed = []
    monkeypatch.setattr(devices, "_all_gpus", lambda: gpus(2))
    monkeypatch.setattr(devices, "_FIND_AGAIN", -1.0)
    here = Devices(cpu=False)
    assert [here.id_of(d.uuid) for d in gpus(2).devices] == ["0", "1"]
    monkeypatch.setattr(here, "close", lambda: closed.append(1))
    assert here.id_of("7") == "7"
    assert not closed
    monkeypatch.setattr(devices, "_all_gpus", lambda: gpus(1))
    assert here.id_of("7") == "7"
    assert closed == [1]
