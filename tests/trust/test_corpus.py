"""Hostile run folders against the commands: nothing is executed, signalled or written outside
of the home, nothing is printed that a terminal obeys, and there is neither traceback nor wait.

Of those in which one file is not what it should be these are some; `test_corpus_files` has all."""

import os
import shutil
import subprocess

import pytest

from gpu_engine.common import procs
from gpu_engine.queue import serve, submit
from gpu_engine.runs.folder import Run

from ..command_line import called
from ..conftest import over
from .commands import EVERY, act, look
from .hostile_runs import ALIKE, GOOD, HEAVY, NAMES, OTHERS, SPECIAL, make, runs_now
from .watching import changed, tree

SOME = dict.fromkeys((*(name for name in OTHERS if any(word in name for word in (
    "escapes", "a link to a file", "a link to a folder"))), *OTHERS[::11]))


@pytest.mark.parametrize("name", [*SPECIAL, *NAMES, *SOME])
def test_folder(name, world, watch):
    """What would be executed or ended, and what is full of escapes, meets every command."""
    path, every = make(name, world), EVERY
    if name in SPECIAL and any(w in name for w in ("executes", "nothing to do", "every text")):
        every = 1
    watching = watch()
    look(watching, path, name, few=name in HEAVY | ALIKE, every=every)
    act(watching, path, name, every=every)
    assert not watching.problems, "\n".join(dict.fromkeys(watching.problems))


def test_nothing_of_the_tests_own_is_wrong(world, watch):
    """The good run alone: every command does what it is for."""
    path = make("", world, "77aa")
    watching = watch()
    look(watching, path, "", every=1)
    assert "77aa" in watching.call("runs")
    for name in ("r.html", "two.html", "r.csv"):
        assert (world.root / "out" / name).stat().st_size > 100
    act(watching, path, "", every=1)
    assert not watching.problems, "\n".join(watching.problems)
    assert not path.exists()
    assert os.listdir(world.root / "work") == []  # noqa: PTH208


@pytest.mark.parametrize("linked", ["ranks", "ranks/00000.jsonl", "lock"])
def test_a_process_of_another_run_is_not_this_ones(linked, world, watch):
    """Its files are links to those that a process of another run has open, and it names that."""
    other, path = world.runs / GOOD, make("", world, "77aa")
    with subprocess.Popen(["sleep", "1000"], stdin=(other / "ranks/00000.jsonl").open("rb"),
                          stdout=(other / "lock").open("wb")) as process:
        try:
            for name in ("lock", "ranks/00000.jsonl", "ranks"):
                if name == linked:
                    shutil.rmtree(path / name) if name == "ranks" else (path / name).unlink()
                    (path / name).symlink_to(other / name)
            world.victim = process.pid, procs.start_ticks(process.pid)
            runs_now(path, world)
            watching = watch()
            for words in (("stacks", "--wait", "0", str(path)), ("stop", "--no-wait", str(path)),
                          ("stop", "--no-wait", "--now", str(path))):
                watching.call(*words)
            assert process.poll() is None
            assert not watching.problems, "\n".join(watching.problems)
        finally:
            process.kill()


def test_the_queue_starts_only_what_was_submitted_here(world, monkeypatch):
    """A folder that says that it waits does not wait with those that do."""
    hostile = make("It waits for its turn, and executes something when that comes", world)
    before = tree(hostile)
    with monkeypatch.context() as patch:
        patch.setattr(submit, "supervise", lambda run, lock: os.close(lock))
        said = called("run", "--queue", "--devices", "cpu:0", "--", "true")
    run = Run(world.runs / said.stdout.split()[0])
    assert serve.ensure() == 1
    over(run)
    assert run.state().state == "completed"
    assert changed(before, tree(hostile)) == []
    assert not world.marker.exists()
