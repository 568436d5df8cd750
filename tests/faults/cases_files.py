"""Files that are cut short, damaged, gone, or dated in the future."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from gpu_engine.runs import folder as runs
from gpu_engine.runs.follow import Follower

from ..conftest import wait_for
from .kit import UNTIL_LET_GO, Box, case, checkpoints, events, logs, members, verified

GARBAGE = [b"", b"{", b"null", b"[]", b"\x00" * 4096, b"\xff\xfe\xfd", b'{"state": []}',
           b'{"state": "running"}', b"[" * 100_000, b'{"state": "completed", "id": 1}',
           b'{"state":"completed","id":"x","name":"x","created":"yesterday","pid":[]}']


@case("A rank is killed within a line of its events; the run restarts",
      "the next attempt begins a new line; one torn line is counted, nothing else is lost")
def a_torn_last_line(box: Box) -> None:
    run = box.go("""
start(); step(1)
if attempt == 1:
    os.write(out._file.descriptor(), b'{"t":1.0,"kind":"step","st')
    os.kill(os.getpid(), signal.SIGKILL)
train(3)
""", ranks=1, train={"restarts": 1})
    state = box.ended(run)
    assert (state.state, state.attempt) == ("completed", 2)
    follower = Follower(run)
    assert len(follower.poll(budget=2)) == 11
    assert follower.skipped == 1
    assert [a.outcome for a in state.attempts] == ["failed", "completed"]
    assert "SIGKILL" in state.attempts[0].reason


@case("state.json damaged in ten ways while the run goes on",
      "the lock tells its state meanwhile; the file is written anew at the end")
def a_damaged_state_of_a_live_run(box: Box) -> None:
    run = box.go("start()" + UNTIL_LET_GO)
    box.running(run)
    for text in GARBAGE:
        (run.path / "state.json").write_bytes(text)
        if text != b'{"state": "running"}':
            assert run.state().state == "running", text
        assert box.cli("runs").returncode == 0
    box.let_go(run)
    assert wait_for(lambda: not run.supervised() or None)
    assert run.state().state == "completed"


def trained(box: Box) -> runs.Run:
    """A completed run of the real worker with three checkpoints: a copy of it after the first
    case."""
    kept = box.tmp.parent / "trained"
    if kept.exists():
        shutil.copytree(kept, box.home / "runs", symlinks=True)
        (run,) = runs.all_runs()
        return run
    run = box.toy(train={"steps": 15, "checkpoint_every": 5})
    assert box.ended(run).state == "completed", logs(run)
    assert len(checkpoints(run)) == 3
    shutil.copytree(run.path, kept / run.path.name, symlinks=True)
    return run


@case("A byte flipped, a file cut short, a page of zeros, a manifest gone: the newest checkpoint",
      "resume warns, goes on from the one before, and completes")
def damaged_checkpoints(box: Box) -> None:
    run = trained(box)

    def flip(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    ways = [lambda p: flip(p / "state.pt"), lambda p: os.truncate(p / "state.pt", 100),
            lambda p: (p / "state.pt").write_bytes(bytes((p / "state.pt").stat().st_size)),
            lambda p: (p / "manifest.json").unlink()]
    at = 15
    for damage in ways if box.full else ways[:1]:  # tests/training has them all
        newest = checkpoints(run)[-1]
        damage(newest)
        assert not verified(newest)
        at += 5
        done = box.cli("resume", run.id, "--set", f"train.steps={at}")
        assert done.returncode == 0, (done, logs(run))
        assert newest.name in events(run, 0, "warning")[-1]["message"]
        # The damaged checkpoint is replaced the next time that step is saved.
        assert events(run, 0, "end")[-1]["steps"] == at
        if newest.exists() and not verified(newest):
            shutil.rmtree(newest)


@case("The whole run folder is deleted under a running run",
      "none of its processes is left; it is gone from the list, and the next run starts")
def a_deleted_run_folder(box: Box) -> None:
    run = box.go("start(); train(every=5)", run={"grace": 2.0})
    state = box.running(run)
    shutil.rmtree(run.path, ignore_errors=True)
    shutil.rmtree(run.path, ignore_errors=True)
    os.kill(state.pid, 15)
    wait_for(lambda: not members(run))
    shutil.rmtree(run.path, ignore_errors=True)  # a rank may have written once more
    assert runs.all_runs() == []
    assert box.ended(box.go("start(); train(2)")).state == "completed"


@case("A supervisor dies, and its run is resumed", "attempt 2 completes; both are on record")
def a_lost_run_is_resumed(box: Box) -> None:
    run = box.go("start(); train(10**9 if attempt == 1 else 3)")
    state = box.running(run)
    os.kill(state.pid, 9)
    wait_for(lambda: run.state().state == "lost" and not members(run))
    time.sleep(0.1)
    done = box.cli("resume", run.id)
    assert done.returncode == 0, done.stderr
    state = run.state()
    assert (state.state, state.attempt) == ("completed", 2)
    assert [a.outcome for a in state.attempts] == ["lost", "completed"]
