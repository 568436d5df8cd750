"""Where a rank is: on SIGUSR2 it prints the stack of each of its threads into its log.

This works while the main thread is stuck inside a call, needs neither root nor ptrace, and does
not stop training. The signal would kill a process that does not catch it, so the kernel's list of
caught signals (SigCgt in /proc/PID/status) is checked first.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpu_engine.common import procs
from gpu_engine.common.files import file_inside, size_of
from gpu_engine.events.paths import inside
from gpu_engine.events.reader import backwards
from gpu_engine.events.schema import Start
from gpu_engine.runs import trust
from gpu_engine.runs.folder import Run

_HEAD = re.compile(rb"^(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):",
                   re.MULTILINE)
_LINE = re.compile(r"  (File |\.\.\.|<)")
_FRAME = re.compile(r'^  File "(.+)", line (\d+),? in (.+)$', re.MULTILINE)
_NOT_OWN = re.compile("^<|-packages/|/lib/python3|/gpu_engine/")
_MOST = 1 << 20
WHOLE = 0.3
"""Seconds without a change after which a stack is taken for whole: it is written in pieces."""


def request(run: Run, rank: int) -> bool:
    """Send the signal to a rank. False if it is gone or does not catch the signal (yet)."""
    found = process(run, rank)
    return found is not None and send(*found, run)


def send(pid: int, ticks: int | None, run: Run) -> bool:
    """Send the signal to the process with this pid and start time. False if it is gone, does not
    belong to `run`, or does not catch the signal."""
    try:
        return procs.send(pid, ticks, signal.SIGUSR2,
                          lambda found: trust.belongs(found, run.path)
                          and procs.catches(found, signal.SIGUSR2))
    except OSError:
        return False


def process(run: Run, rank: int) -> tuple[int, int | None] | None:
    """(pid, start ticks) of the process of `rank` on this machine: the one named by the rank's last
    start event, else the one that the supervisor started. None if neither runs."""
    state = run.state()
    if not state.live:
        return None
    start = next(backwards(run.events(rank), Start), None)
    if start is not None and start.attempt == state.attempt \
            and start.pid is not None and procs.alive(start.pid, start.started):
        return start.pid, start.started
    return next(((p.pid, p.ticks) for p in state.processes if p.rank == rank and p.exit is None),
                None)


def crashed_at(log: str) -> str | None:
    """The innermost line of the main thread that is not a library's, "/here/train.py:40 in main",
    in what Python printed as native code ended the process; None if it printed nothing."""
    _, crashed, stacks = log.rpartition("Fatal Python error: ")
    main = stacks.rpartition("(most recent call first):")[2]  # the oldest thread comes last
    return _own(_FRAME.findall(main)) if crashed else None


def raised_at(traceback: str) -> str | None:
    """The same of an exception's traceback, whose innermost line comes last."""
    return _own(reversed(_FRAME.findall(traceback)))


def _own(frames: Iterable[tuple[str, str, str]]) -> str | None:
    return next((f"{file}:{line} in {function}" for file, line, function in frames
                 if not _NOT_OWN.search(file)), None)


def below(run: Run, rank: int, wait: float) -> Iterator[tuple[int, str]]:
    """(pid, stacks) of each process that `rank` has forked on this machine and that prints them
    within `wait` seconds. Another program that it has started may catch the signal for itself."""
    found = process(run, rank)
    if found is None:
        return
    for pid in procs.children(found[0]):
        before, end, text = size_of(run.log(rank)), time.monotonic() + wait, None
        try:
            forked = procs.arguments(pid) == procs.arguments(found[0])
        except OSError:  # it has just ended
            continue
        if not forked or not send(pid, procs.start_ticks(pid), run):
            continue
        while time.monotonic() < end:
            time.sleep(WHOLE)
            last, text = text, printed(run.log(rank), before)
            if text is not None and text == last:
                yield pid, text
                break


def printed(path: Path, offset: int) -> str | None:
    """The stacks that were printed into the log `path` after `offset`; None if there are none
    (yet)."""
    try:
        with file_inside(*inside(path)) as file:
            if os.fstat(file.fileno()).st_size < offset:
                offset = 0  # the log was cut since
            file.seek(offset)
            data = file.read(_MOST)
    except OSError:
        return None
    found = _HEAD.search(data)
    if found is None:
        return None
    lines = data[found.start():].decode(errors="replace").splitlines()
    kept = []
    for line in lines:
        if not (_LINE.match(line) or not line or _HEAD.match(line.encode())):
            break
        kept.append(line)
    return "\n".join(kept).rstrip() or None
