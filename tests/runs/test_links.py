"""What stands in a run folder in place of a file of ours: a link, a file with two names, a FIFO, a
huge file. Nothing outside is read or written, and nothing is waited for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_engine.common.errors import UserError
from gpu_engine.events import schema
from gpu_engine.events.reader import Tail
from gpu_engine.events.writer import EventWriter, append
from gpu_engine.notify import journal
from gpu_engine.runs import folder as runs
from gpu_engine.runs import notes, stacks
from gpu_engine.supervisor import logs
from gpu_panel.run.log_file import LogFile

from .. import odd_runs
from ..command_line import called

SECRET = "the secret of somebody"
@pytest.fixture
def run():
    """A run that has ended, with a log and a checkpoint."""
    run = odd_runs.ended()
    run.log(0).write_text("said\n")
    run.events(0).touch()
    (run.checkpoints / "step-00000001").mkdir(parents=True)
    return run


@pytest.fixture
def outside(tmp_path):
    """A file that is none of a run's."""
    path = tmp_path / "outside" / "bashrc"
    path.parent.mkdir()
    path.write_text(SECRET + "\n")
    return path


def instead(run: runs.Run, name: str) -> Path:
    path = run.path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    return path


def test_a_linked_log_is_not_printed(run, outside):
    instead(run, "ranks/00000.log").symlink_to(outside)
    assert SECRET not in called("logs", run.id).stdout
    assert stacks.printed(run.log(0), 0) is None
    assert logs.tail(run.log(0)) == ""
    shown = LogFile("log", run.log(0))
    assert shown.read() == []
    assert shown.trouble == \
        "00000.log can't be read: it is a link, and none is followed in a run folder"
    logs.note(run.log(0), "a note")
    assert not logs.bound(run.log(0), 3)
    assert outside.read_text() == SECRET + "\n"


@pytest.mark.parametrize("how", ["symbolic", "hard"])
def test_nothing_is_written_through_a_link(run, outside, how):
    """A file with a second name may be read: whoever made that name could read it."""
    for name in ("state.json", "notes.json", "notify.log", "ranks/00000.jsonl", "ranks/00000.log"):
        path = instead(run, name)
        path.hardlink_to(outside) if how == "hard" else path.symlink_to(outside)
    for write in (lambda: EventWriter(run.events(0)).close(),
                  lambda: append(run.events(0), schema.Warning("x")),
                  lambda: notes.change(run.path, lambda old: notes.Notes("mine")),
                  lambda: run.write_state(run.state()),
                  lambda: journal.Journal(run.path).acquire(),
                  lambda: logs.note(run.log(0), "x"),
                  lambda: logs.bound(run.log(0), 1)):
        try:
            write()
        except (OSError, UserError):
            pass
    assert outside.read_text() == SECRET + "\n"


HOOK = Path(sys.modules["gpu_engine"].__path__[0]) / "observe" / "hook"


def hooked(run: runs.Run, rank: str, direct: bool):
    """Start a Python as a script's of this run, with the hook."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GPU_PANEL")}
    env |= {"PYTHONPATH": str(HOOK), "GPU_PANEL_RUN": str(run.path), "GPU_PANEL_RANK": rank}
    env |= {"GPU_PANEL_DIRECT": str(os.getpid())} if direct else {}
    subprocess.run([sys.executable, "-c", "pass"], check=True, timeout=60, env=env)


def test_the_hook_of_a_script_writes_in_the_run_folder(run):
    for rank, direct in (("0", True), ("0", False), ("x", True)):  # the last fails: it is noted
        hooked(run, rank, direct)
    assert [type(e).kind for e in Tail(run.events(0)).read()] == ["start", "phase"]
    assert (run.path / "python-seen").exists()
    assert "ValueError" in (run.path / "observe-errors.log").read_text()


@pytest.mark.parametrize(("what", "how"), [
    ("ranks/00000.jsonl", "symbolic"), ("ranks", "symbolic"), ("python-seen", "symbolic"),
    ("observe-errors.log", "symbolic"), ("ranks/00000.jsonl", "fifo")])
def test_it_writes_through_no_link(run, outside, what, how):
    if what == "ranks":
        outside = (run.path / "ranks").rename(outside.parent / "ranks") / "00000.jsonl"
        (run.path / "ranks").symlink_to(outside.parent)
        outside.write_text(SECRET + "\n")
    elif how == "fifo":
        os.mkfifo(instead(run, what))
    else:
        instead(run, what).symlink_to(outside)
    for rank, direct in (("0", True), ("0", False), ("x", True)):
        hooked(run, rank, direct)
    assert outside.read_text() == SECRET + "\n"
