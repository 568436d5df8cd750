"""What /proc tells of a process, beside psutil and what this process knows of itself."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from gpu_engine.common import procs

NAMED = ("import ctypes, time; ctypes.CDLL(None).prctl(15, {name!r}); print(flush=True); "
         "time.sleep(60)")


def test_a_stat_line_beside_psutil():
    mine, theirs = procs.read_stat(os.getpid()), psutil.Process()
    assert (mine.name, mine.parent) == (theirs.name()[:15], os.getppid())
    assert not mine.ended
    boot, tick = psutil.boot_time(), os.sysconf("SC_CLK_TCK")
    assert boot + mine.start_ticks / tick == pytest.approx(theirs.create_time(), abs=1.5)
    times = theirs.cpu_times()
    assert mine.cpu_ticks / tick == pytest.approx(times.user + times.system, abs=0.5)
    assert mine.resident_pages * os.sysconf("SC_PAGE_SIZE") == pytest.approx(
        theirs.memory_info().rss, rel=0.2)


@pytest.mark.parametrize("name", [b"a b", b") R 1 1 (", b"tab\there", b"\xff\xfe"])
def test_a_name_that_looks_like_the_rest_of_the_line(name):
    child = subprocess.Popen([sys.executable, "-c", NAMED.format(name=name)],
                             stdout=subprocess.PIPE)
    try:
        child.stdout.readline()
        found = procs.read_stat(child.pid)
        assert (found.name, found.parent) == (name.decode(errors="replace"), os.getpid())
        assert procs.start_ticks(child.pid) == found.start_ticks
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        assert procs.suspended(child.pid)
    finally:
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        # A zombie: it is known to the kernel, and nothing of it runs.
        assert procs.read_stat(child.pid).ended
        assert procs.start_ticks(child.pid) is None
        child.wait()
    assert procs.stat(child.pid) is None
    assert procs.cpu_ticks(child.pid) is None
    with pytest.raises(FileNotFoundError):
        procs.read_stat(child.pid)


def test_command_line_and_environment():
    program = "print(flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", program, "", "two words", ""],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             env=os.environ | {"MARK": "a=b c"})
    with child:
        child.stdout.readline()
        assert procs.arguments(child.pid)[-3:] == [b"", b"two words", b""]
        assert b"MARK=a=b c" in procs.environment(child.pid)
        assert procs.program(child.pid) == Path(sys.executable).resolve().name
        child.stdin.close()


@pytest.mark.parametrize(("code", "said"), [
    ("raise SystemExit(3)", "exited with 3"),
    ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL"),
    ("import os, signal; os.kill(os.getpid(), signal.SIGRTMIN + 2)", "killed by signal 36")])
def test_how_a_process_ended(code, said):
    status = subprocess.run([sys.executable, "-S", "-c", code], check=False).returncode
    assert procs.describe_exit(status) == said


def test_a_process_with_thousands_of_files_is_told_that_there_is_something_to_read():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    read, write = os.pipe()
    try:
        os.dup2(read, 2000)
        assert not procs.readable(2000, 0)
        os.write(write, b"x")
        assert procs.readable(2000, 3000)
    finally:
        for fd in (2000, read, write):
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with pytest.raises(OSError, match="is not open"):
        procs.readable(2000, 0)
