"""Asking a rank where it is: SIGUSR2 has it print the stack of each thread into its log.

Works while the main thread is stuck inside a call, needs neither root nor ptrace, and training
goes on. A process that does not catch the signal would be killed by it, so it is asked of the
kernel (SigCgt in /proc/PID/status) whether it does.
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

from gpu_engine.common import procs
from gpu_engine.common.files import open_file
from gpu_engine.events.reader import backwards
from gpu_engine.events.schema import Start
from gpu_engine.runs.folder import Run

_HEAD = re.compile(rb"^(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):",
                   re.MULTILINE)
_LINE = re.compile(r"  (File |\.\.\.|<)")
_MOST = 1 << 20


def ask(run: Run, rank: int) -> bool:
    """Send the signal; False where the rank is gone or does not listen (yet)."""
    found = process(run, rank)
    return found is not None and send(*found)


def send(pid: int, ticks: int | None) -> bool:
    """The same for a process known by pid and start ticks."""
    try:
        return procs.send(pid, ticks, signal.SIGUSR2, listens)
    except OSError:
        return False


def listens(pid: int) -> bool:
    """Whether the process catches SIGUSR2."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGUSR2 - 1) & 1)


def process(run: Run, rank: int) -> tuple[int, int | None] | None:
    """(pid, start ticks) of the process that is `rank` on this machine: the last that said so in
    its events, else the one that the supervisor started."""
    state = run.state()
    if not state.live:
        return None
    start = next(backwards(run.events(rank), Start), None)
    if start is not None and start.attempt == state.attempt \
            and start.pid is not None and procs.alive(start.pid, start.started):
        return start.pid, start.started
    return next(((p.pid, p.ticks) for p in state.processes if p.rank == rank and p.exit is None),
                None)


def since(path: Path, offset: int) -> str | None:
    """The stacks that were printed into the log at `path` behind `offset`; None: none (yet)."""
    try:
        with open_file(path) as file:
            if os.fstat(file.fileno()).st_size < offset:
                offset = 0  # it was cut meanwhile
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


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
