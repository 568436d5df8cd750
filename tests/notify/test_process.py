"""The process that tells of a run: it follows the run, tells its end, and ends."""

from __future__ import annotations

import fcntl
import json
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from gpu_engine.devices.records import Inventory
from gpu_engine.launching import launcher, logind, notifier
from gpu_engine.notify import __main__ as process
from gpu_engine.notify import config, journal, send, watch
from gpu_engine.runs import sweep, waiting
from gpu_engine.runs.state import AttemptRecord, Cause
from gpu_engine.spec.read import from_dict

from ..command_line import called
from ..conftest import wait_for
from ..plans import plan
from .endpoint import Endpoint, endpoint, private
from .kit import Made, found

SECRET = "hushhush"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(process, "EVERY", 0.02)
    monkeypatch.setattr(watch, "_FIGURES_EVERY", 0.0)


def tell(*entries: dict[str, object]):
    """Write notify.toml."""
    text = ""
    for number, entry in enumerate(entries):
        text += "[[to]]\n" + "".join(
            f"{k} = {json.dumps(v)}\n" for k, v in ({"name": f"n{number}"} | entry).items())
    private(config.path(), text)


def at(there: Endpoint, **more: object) -> dict[str, object]:
    return {"kind": "json", "url": f"{there.url}/{SECRET}"} | more


class Following:
    """`follow` in a thread."""

    def __init__(self, made: Made):
        self.thread = threading.Thread(target=process.follow, args=(made.run,), daemon=True)
        self.thread.start()

    def ends(self):
        wait_for(lambda: not self.thread.is_alive())


def test_it_tells_the_end_to_those_who_want_it_and_notes_how_that_went():
    made = Made()
    with endpoint(200) as there, endpoint(404) as gone:
        tell(at(there), at(gone), at(there, on=["finished"]), at(there, min_seconds=1000))
        following = Following(made)
        wait_for(lambda: (made.run.path / journal.FILE).exists())
        made.end("failed", cause=Cause("the data is bad", 1))
        following.ends()
        [got] = there.got
        assert got.json["event"] == "failed"
        assert got.json["cause"] == "rank 1: the data is bad"
    rows = journal.read(made.run.path)
    assert {(to, result) for _, to, result in rows} == {
        ("n0", "sent"), ("n1", "the endpoint answered 404")}
    assert (made.run.path / journal.FILE).stat().st_mode & 0o777 == 0o600
    assert SECRET not in found(made.run)
    assert journal.troubles(made.run.path) == [
        "failed: n1 was not notified: the endpoint answered 404"]
    process.follow(made.run)
    assert journal.read(made.run.path) == rows, "an end that was told is not told again"


def test_the_file_is_read_when_there_is_something_to_tell():
    made = Made()
    with endpoint(200) as there:
        tell()
        following = Following(made)
        wait_for(lambda: (made.run.path / journal.FILE).exists())
        tell(at(there))
        config.path().chmod(0o644)
        config.path().parent.chmod(0o755)
        made.end("completed")
        following.ends()
        assert there.got == []
        [(key, to, result)] = journal.read(made.run.path)
        assert (key.split()[0], to) == ("completed", "anybody")
        assert f"chmod 600 {config.path()}" in result
        made.again()
        config.path().chmod(0o600)
        made.end("stopped")
        process.follow(made.run)
        assert journal.read(made.run.path)[1][2] == journal.NOT_WANTED
        assert len(journal.troubles(made.run.path)) == 1


def test_a_run_that_is_resumed_while_its_end_is_told_is_followed_by_the_same_process(monkeypatch):
    """The process of the resume finds the lock taken and ends."""
    monkeypatch.setattr(send, "SECONDS", 30.0)
    made, until = Made(), threading.Event()
    with endpoint(lambda handler: until.wait(), 200) as there:
        tell(at(there, on=["failed", "finished"]))
        following = Following(made)
        made.end("failed")
        wait_for(lambda: there.got)
        made.again()
        process.follow(made.run)
        until.set()
        made.end("completed")
        following.ends()
        assert there.got[-1].json["event"] == "finished"
        assert there.got[-1].json["attempt"] == 2
    assert [key.split()[0] for key, _, _ in journal.read(made.run.path)] == [
        "failed", "completed"]


def test_a_search_whose_process_was_killed_is_not_over_until_it_asks_for_no_more():
    made, place = Made(), sweep.Member("sa", "lr", 1, 9, 1.0, {"train.lr": "1e-3"}, search="tpe")
    sweep.write(made.run.path, place)
    made.end("completed")
    search = waiting.search_file(waiting.folder_beside(made.run.path), "sa")
    search.parent.mkdir(parents=True, exist_ok=True)
    kept = {"spec": {}, "axes": {}, "tries": 9, "repeat": 1}
    for why, over in ((None, False), ("no room", True)):
        search.write_text(json.dumps(kept | {"why": why}))
        assert process._sweep_of(made.run, place)[1] is over
    search.unlink()
    assert process._sweep_of(made.run, place)[1]


def test_of_a_sweep_the_first_failure_is_told_and_its_end_once_whoever_sees_it(monkeypatch):
    def one(index: int) -> Made:
        made = Made()
        sweep.write(made.run.path, sweep.Member("sa", "lr", index, 5, made.began - 60,
                                                {"train.lr": f"{index}e-3"}))
        return made

    members = [one(index) for index in range(1, 6)]
    lock = waiting.sweep_lock(waiting.folder_beside(members[0].run.path), "sa")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with endpoint(200) as there, lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # its process may have some go on
        tell(at(there, min_seconds=60))
        following = [Following(made) for made in members]
        for index, made in enumerate(members[:2], 1):
            made.end("failed", cause=Cause(f"bad {index}", 0), attempts=(
                AttemptRecord(1, made.began - 70, made.began),))
            following[index - 1].ends()
        assert [got.json["cause"] for got in there.got] == ["rank 0: bad 1"]
        members[2].end("stopped")  # as run.stop_worse does
        following[2].ends()
        for loss, made in enumerate(members[3:], 1):
            made.event("start", 0, rank=0, pid=1, world_size=1, attempt=1)
            made.event("step", 0, step=1, n=1, epoch=0, loss=loss / 2, losses=[loss / 2])
            made.end("completed")
        fcntl.flock(held, fcntl.LOCK_UN)
        for each in following:
            each.ends()
        [_, end] = there.got
        assert (end.json["event"], end.json["title"]) == ("finished", "sweep sa lr has ended")
        assert (end.json["sweep"], end.json["run"]) == ("sa", None)
        assert end.json["text"].endswith(
            " after it was submitted: 2 of 5 done, 2 failed, 1 stopped; best loss 0.500: run "
            f"{members[3].run.id} (lr 4e-3)")
        assert [journal.troubles(made.run.path) for made in members] == [[]] * 5
        members[1].again()
        members[1].end("completed")
        process.follow(members[1].run)
        assert "3 of 5 done, 1 failed" in there.got[-1].json["text"], "tried again"
        assert len(there.got) == 3


def test_a_resume_in_the_last_moment_is_followed_too(monkeypatch):
    """After the last look, before the lock is free: who comes with the resume finds it taken."""
    made, let_go = Made(), journal.Journal.release

    def resumed(self: journal.Journal):
        if made.run.state().attempt == 1:
            made.again()
            process.follow(made.run)
            made.end("completed")
        let_go(self)

    monkeypatch.setattr(journal.Journal, "release", resumed)
    with endpoint(200) as there:
        tell(at(there))
        made.end("failed")
        process.follow(made.run)
        assert [got.json["event"] for got in there.got] == ["failed", "finished"]


def test_it_ends_when_the_run_is_removed():
    made = Made()
    tell()
    following = Following(made)
    wait_for(lambda: (made.run.path / journal.FILE).exists())
    made.let_go()
    made.remove()
    following.ends()
    assert not made.run.path.exists()


def test_a_journal_that_can_not_be_written_keeps_nobody_from_the_lock():
    made = Made()
    (made.run.path / journal.FILE).symlink_to("/dev/null")
    assert not journal.Journal(made.run.path).acquire()
    assert journal.read(made.run.path) == []


def test_a_journal_does_not_grow_for_ever():
    path = Made().run.path
    kept = journal.Journal(path)
    assert kept.acquire()
    for _ in range(1000):
        kept.write("failed 1", "phone", "no answer " * 40)
    kept.release()
    assert (path / journal.FILE).stat().st_size < journal._MOST + 1000
    assert len(journal.read(path)) > 500


def test_it_asks_slurm_about_a_job_and_tells_what_that_says(monkeypatch):
    from gpu_engine.runs import job
    from gpu_engine.slurm import watch as slurm

    made = Made()
    job.write(made.run.path, job.Job(41007, state="PENDING"))
    asked: list[bool] = []

    def refresh(*, at_once=False):
        asked.append(at_once)
        job.write(made.run.path, job.Job(41007, state="TIMEOUT", nodes="gpu[03-04]"))

    monkeypatch.setattr(slurm, "refresh", refresh)
    with endpoint(200) as there:
        tell(at(there))
        process.follow(made.run)
        [got] = there.got
    assert got.json["on"] == ["gpu[03-04]"]
    assert got.json["cause"] == "Slurm job 41007 reached its time limit"
    assert asked == [False]


@pytest.mark.parametrize(("asked_for", "starts"), [(None, True), ("by another machine", False)])
def test_it_is_started_beside_a_supervisor_but_not_for_the_part_of_a_host(
        monkeypatch, asked_for, starts):
    argv: list[list[str]] = []
    environments: list[dict[str, str]] = []

    def popen(words, **more):
        argv.append(words)
        environments.append(more["env"])

    made = Made(origin=asked_for)
    monkeypatch.setattr(logind.subprocess, "Popen", popen)
    notifier.start(made.run)
    assert argv == [], "nobody is to be told"
    tell({"kind": "json", "url": f"https://x/{SECRET}"})
    monkeypatch.setenv("GPU_PANEL_RUN", "/another/run")
    notifier.start(made.run)
    assert [words[1:] for words in argv] == (
        [["-P", "-m", "gpu_engine.notify", str(made.run.path)]] if starts else [])
    assert not any("GPU_PANEL_RUN" in environment for environment in environments)
    made.let_go()


def test_a_launch_warns_that_nobody_will_be_told():
    assert notifier.doubt() is None
    tell()
    config.path().chmod(0o644)
    config.path().parent.chmod(0o755)
    assert "no notifications will be sent about this run" in notifier.doubt()
    warned = launcher.warned(replace(plan(1), warnings=("one",)), None, notifier.doubt())
    assert warned.warnings == ("one", notifier.doubt())


def test_trials_and_runs_that_ask_for_it_start_nobody_who_tells(monkeypatch):
    started: list[str] = []
    monkeypatch.setattr(launcher.notifier, "start", lambda run: started.append(run.id))
    monkeypatch.setattr(launcher, "environment", SimpleNamespace(note=lambda *about: None))
    monkeypatch.setattr(logind.subprocess, "Popen", lambda argv, **how: None)
    prepared = launcher.Prepared(from_dict({}), Inventory((), "cpu"), plan(1))
    assert launcher.start(prepared).id in started
    launcher.start(prepared, tell=False)
    assert len(started) == 1
    assert called("run", "--no-notify", "--queue", "default").returncode == 2
