"""Where a process is: asked by a signal that would end whoever does not catch it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_engine.common import procs
from gpu_engine.common.files import size_of
from gpu_engine.runs import stacks
from gpu_engine.runs.folder import Run

from ..conftest import wait_for

RUN = Run(Path("/nowhere/runs/3f2a"))
"""Only its name matters: the processes have it in their environment."""
CATCHES = "import faulthandler, signal; faulthandler.register(signal.SIGUSR2, all_threads=True)\n"
WAITS = """
import sys
def stands_here():
    print("ready", flush=True), sys.stdin.read()  # one line, wherever the signal finds it
stands_here()
"""


@contextmanager
def process(code: str, log: Path, run: Run = RUN) -> Iterator[subprocess.Popen[str]]:
    """A Python that waits, once it is there; its stderr is `log`."""
    with log.open("wb") as err, subprocess.Popen(
            [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=err, text=True, env=os.environ | {"GPU_PANEL_RUN": str(run.path)}) as started:
        assert started.stdout.readline() == "ready\n"
        yield started
        started.communicate()


def whole(log: Path, offset: int) -> str | None:
    """The printed stack, once its outermost frame is there: it comes in pieces."""
    told = stacks.printed(log, offset)
    return told if told and "stands_here" in told and told.endswith("in <module>") else None


def test_it_prints_where_it_is_and_goes_on(tmp_path):
    log = tmp_path / "log"
    with process(CATCHES + WAITS, log) as there:
        ticks = procs.start_ticks(there.pid)
        assert stacks.send(there.pid, ticks, RUN)
        told = wait_for(lambda: whole(log, 0))
        assert told.startswith(("Current thread 0x", "Thread 0x"))
        end = size_of(log)
        assert stacks.printed(log, end) is None  # nothing new since
        assert stacks.send(there.pid, ticks, RUN)
        assert wait_for(lambda: whole(log, end)) == told
        assert there.poll() is None
    assert there.returncode == 0
    assert not stacks.send(there.pid, ticks, RUN)


def test_what_does_not_catch_the_signal_is_left_alone(tmp_path):
    with process(WAITS, tmp_path / "log") as there:
        assert not procs.catches(there.pid, signal.SIGUSR2)
        assert not stacks.send(there.pid, procs.start_ticks(there.pid), RUN)
    assert there.returncode == 0
    assert not procs.catches(there.pid, signal.SIGUSR2)


def test_a_process_of_another_run_is_left_alone(tmp_path):
    with process(CATCHES + WAITS, tmp_path / "log", Run(RUN.path.with_name("4909"))) as there:
        assert procs.catches(there.pid, signal.SIGUSR2)
        assert not stacks.send(there.pid, procs.start_ticks(there.pid), RUN)
    assert size_of(tmp_path / "log") == 0


def test_another_process_of_that_number_is_not_signalled(tmp_path):
    with process(CATCHES + WAITS, tmp_path / "log") as there:
        ticks = procs.start_ticks(there.pid)
        assert ticks is not None
        assert not stacks.send(there.pid, ticks + 1, RUN)
    assert there.returncode == 0
    assert size_of(tmp_path / "log") == 0


def test_stacks_are_found_in_a_log_that_was_cut_and_end_where_other_words_begin(tmp_path):
    log = tmp_path / "log"
    log.write_text("step 3\nThread 0x7f01 (most recent call first):\n"
                   '  File "a.py", line 3 in wait\n  ...\n\n'
                   "Current thread 0x7f02 (most recent call first):\n"
                   '  File "b.py", line 9 in <module>\nstep 4 loss 1.5\n')
    told = stacks.printed(log, 10_000)  # longer than the log is now
    assert told.splitlines()[0] == "Thread 0x7f01 (most recent call first):"
    assert told.splitlines()[-1] == '  File "b.py", line 9 in <module>'
    assert stacks.printed(tmp_path / "none", 0) is None
    assert size_of(tmp_path / "none") == 0
