"""The supervisor has nothing of the command that launches, and outlives it."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from gpu_engine.common import procs
from gpu_engine.runs import folder as runs

from ..conftest import wait_for

WAITS = "import sys, time; print('begun', flush=True); time.sleep(600)"


def command(tmp_path) -> list[str]:
    """`gpu-engine run` of a script that waits."""
    script = tmp_path / "waits.py"
    script.write_text(WAITS)
    return [sys.executable, "-m", "gpu_engine", "run", "--devices", "cpu:0", "--",
            sys.executable, str(script)]


def begun() -> runs.Run:
    """The run, once its rank has said something and its state is told."""
    def look() -> runs.Run | None:
        found = runs.all_runs()
        return found[0] if found and "begun" in text(found[0]) \
            and found[0].state().state == "running" else None
    return wait_for(look)


def text(run: runs.Run) -> str:
    return run.log(0).read_text() if run.log(0).exists() else ""


def over(run: runs.Run) -> runs.State:
    return wait_for(lambda: (s := run.state()) and not s.live and not run.supervised() and s)


def words(pid: int) -> list[str]:
    return [os.fsdecode(word) for word in procs.arguments(pid)]


@pytest.fixture
def on_a_terminal(home, tmp_path):
    """The command on a terminal of its own, with a file that it has inherited; the terminal's other
    end."""
    master, slave = pty.openpty()
    file = os.open(tmp_path / "inherited", os.O_RDWR | os.O_CREAT)
    process = subprocess.Popen(command(tmp_path), stdin=slave, stdout=slave, stderr=slave,
                               start_new_session=True, pass_fds=(file,), cwd=tmp_path,
                               preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
    os.close(slave)
    os.close(file)
    yield process, master
    process.kill()
    process.wait()
    os.close(master)


@pytest.mark.usefixtures("on_a_terminal")
def test_it_has_nothing_of_the_command(tmp_path):
    run = begun()
    supervisor = run.state().pid
    guard = procs.read_stat(supervisor).parent
    for pid in (supervisor, guard):
        assert os.getsid(pid) == pid
        assert Path(f"/proc/{pid}/cwd").readlink() == Path("/")
        assert words(pid)[:4] == [sys.executable, "-P", "-m", "gpu_engine.supervisor"]
        assert "waits.py" not in " ".join(words(pid))
        there = {file.readlink() for file in Path(f"/proc/{pid}/fd").iterdir()}
        assert not [file for file in there if str(file).startswith(("/dev/pts", "/dev/tty"))]
        assert tmp_path / "inherited" not in there
    run.stop(now=True)
    assert over(run).state == "stopped"


@pytest.mark.parametrize("end", ["hang up", "kill"])
def test_it_outlives_the_terminal_and_the_command(on_a_terminal, end):
    process, _ = on_a_terminal
    run = begun()
    if end == "hang up":
        os.killpg(process.pid, signal.SIGHUP)
    else:
        process.kill()
    process.wait()
    assert run.state().state == "running"
    assert run.supervised()
    run.stop(now=True)
    assert over(run).state == "stopped"


def test_ctrl_c_stops_it_through_the_command(on_a_terminal):
    process, master = on_a_terminal
    run = begun()
    os.write(master, b"\x03")
    assert over(run).state == "stopped"
    assert process.wait() == 130


def test_ctrl_c_while_it_starts_stops_it_too(on_a_terminal):
    """Before the command watches it, and before its rank says anything."""
    process, master = on_a_terminal
    (run,) = wait_for(runs.all_runs)
    os.write(master, b"\x03")
    assert over(run).state == "stopped"
    assert process.wait() == 130
