"""A supervisor that is a fork of the command: as far from it as a process of its own."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest

from gpu_engine.common import procs
from gpu_engine.launch import detached
from gpu_engine.runs import folder as runs

from ..conftest import wait_for

WAITS = "import sys, time; print('begun', flush=True); time.sleep(600)"
LAUNCHES = "from gpu_engine.cli import main; main()"
WITH_A_THREAD = f"""import threading, time
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
{LAUNCHES}"""


def command(code: str, tmp_path, *words: str) -> list[str]:
    """`gpu-engine run` of a script that waits, in a process that executes `code`."""
    script = tmp_path / "waits.py"
    script.write_text(WAITS)
    return [sys.executable, "-c", code, "run", "--devices", "cpu:0", *words, "--", sys.executable,
            str(script)]


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
    process = subprocess.Popen(command(LAUNCHES, tmp_path), stdin=slave, stdout=slave, stderr=slave,
                               start_new_session=True, pass_fds=(file,), cwd=tmp_path,
                               preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
    os.close(slave)
    os.close(file)
    yield process, master
    process.kill()
    process.wait()
    os.close(master)


def test_it_is_a_fork_that_has_nothing_of_the_command(on_a_terminal, tmp_path):
    process, _ = on_a_terminal
    run = begun()
    supervisor = run.state().pid
    guard = procs.read_stat(supervisor).parent
    assert procs.read_stat(guard).parent == process.pid, "it was not forked, or not by the command"
    for pid in (supervisor, guard):
        assert os.getsid(pid) == pid
        assert Path(f"/proc/{pid}/cwd").readlink() == Path("/")
        assert words(pid)[1:4] == ["-P", "-m", "gpu_engine.supervisor"]
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


def test_without_its_supervisor_nothing_is_left(on_a_terminal):
    process, _ = on_a_terminal
    run = begun()
    rank = run.state().processes[0].pid
    os.kill(run.state().pid, signal.SIGKILL)
    wait_for(lambda: procs.start_ticks(rank) is None)
    assert over(run).state == "lost"
    assert process.wait() == 1


def test_beside_a_thread_it_is_a_process_of_its_own(home, tmp_path):
    """A lock that the thread holds at the fork would be held for ever."""
    done = subprocess.run(command(WITH_A_THREAD, tmp_path, "--detach"), check=True,
                          stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    run = begun()
    supervisor = run.state().pid
    assert words(supervisor)[:4] == [sys.executable, "-P", "-m", "gpu_engine.supervisor"]
    assert "gpu_engine.cli" not in done.stdout
    run.stop(now=True)
    assert over(run).state == "stopped"


def test_a_thread_is_seen():
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    assert not detached.can_fork()
    stop.set()
    thread.join()


def test_what_fails_in_the_fork_is_in_its_log_and_in_its_status(tmp_path):
    """Also what is wrong with it, and nothing of the process that it is a fork of goes on."""
    code = """
import logging, os, sys
from gpu_engine.launch import detached
logging.basicConfig(filename="own", force=True)
log, lock = (os.open(name, os.O_RDWR | os.O_CREAT) for name in ("log", "lock"))
print("once", end="")
def fails():
    logging.basicConfig(force=True)
    1 // 0

detached.fork(fails, ["x" * 10_000], log, lock)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 1
detached.fork(lambda: os.isatty(0) or len(os.listdir("/proc/self/fd")), ["a"], log, lock)
print("", os.waitstatus_to_exitcode(os.wait()[1]), end="")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE,
                          text=True, check=True)
    assert done.stdout == "once 5"  # 0, 1, 2, the lock, and the folder that is listed
    assert "ZeroDivisionError" in (tmp_path / "log").read_text()
