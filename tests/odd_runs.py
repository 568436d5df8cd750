"""Run folders in an unusual state, and one in its normal state."""

from __future__ import annotations

import os
import time
from pathlib import Path

from gpu_engine.runs import folder as runs
from gpu_engine.runs.create import create_run

from .plans import plan

PLAN = plan()


def ended(state: str = "completed", age: float = 0.0) -> runs.Run:
    """A run folder as a run leaves it."""
    run, lock = create_run("toy", "[train]\nsteps = 9\n", PLAN)
    os.close(lock)
    now = time.time() - age
    run.write_state(runs.State(state, run.id, "toy", now, started=now, ended=now + 3))
    return run


def make() -> dict[str, tuple[Path, str]]:
    """For each oddity: the run folder, and words that must be shown about it."""
    out: dict[str, tuple[Path, str]] = {}

    def odd(what: str, words: str) -> Path:
        path = ended(age=len(out) + 1).path
        out[what] = (path, words)
        return path

    def instead(path: Path) -> Path:
        path.unlink(missing_ok=True)
        return path

    path = odd("events are a FIFO", "00000.jsonl can't be read: it is a FIFO")
    os.mkfifo(path / "ranks" / "00000.jsonl")
    path = odd("a log is a FIFO", "00001.log can't be read: it is a FIFO")
    os.mkfifo(path / "ranks" / "00001.log")
    path = odd("its state is a FIFO", "state.json can't be read: it is a FIFO")
    os.mkfifo(instead(path / "state.json"))
    path = odd("its plan is a FIFO", "plan.json can't be read: it is a FIFO")
    os.mkfifo(instead(path / "plan.json"))
    path = odd("its lock is a FIFO, and it was running", "its supervisor died")
    runs.Run(path).write_state(runs.State("running", path.name, "toy", time.time()))
    os.mkfifo(instead(path / "lock"))
    path = odd("its state is a folder", "state.json can't be read: it is a folder")
    instead(path / "state.json").mkdir()
    path = odd("its events are a folder", "00000.jsonl can't be read: it is a folder")
    (path / "ranks" / "00000.jsonl").mkdir()
    path = odd("its state is a circle of links", "state.json can't be read: it is a link")
    instead(path / "state.json").symlink_to("state.json")
    path = odd("its ranks are a circle of links", "ranks can't be read: too many levels")
    (path / "ranks").rmdir()
    (path / "ranks").symlink_to("ranks")
    path = odd("its plan has another shape", "3 s")  # the contents are not needed here
    (path / "plan.json").write_text('{"ranks": 5, "processes": null, "spec": [], "mode": 3,'
                                    ' "replicas": "x", "lines": 1, "world_size": []}')
    path = odd("its state is no state", "state.json is damaged")
    (path / "state.json").write_text("[1, 2]")
    path = odd("its ranks are closed", "ranks can't be read: permission denied")
    (path / "ranks").chmod(0)
    path = odd("it is closed", "can't be read: permission denied")
    path.chmod(0)
    return out


def reopen(made: dict[str, tuple[Path, str]]) -> None:
    """Make the folder deletable."""
    for path, _ in made.values():
        if path.exists():
            path.chmod(0o700)
            if not (path / "ranks").is_symlink():
                (path / "ranks").chmod(0o700)
