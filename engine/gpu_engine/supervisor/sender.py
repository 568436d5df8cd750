"""Where a signal to stop came from, if it was not a command of gpu-panel: a logout, a shutdown, a
`kill`."""

from __future__ import annotations

import os
from pathlib import Path

from gpu_engine.common import procs

_OURS = (b"gpu-engine", b"gpu-panel", b"gpu_engine", b"gpu_panel")


def describe(pid: int, root: Path = procs.PROC) -> str | None:
    """The sender of a signal in words: "by a signal from slurmstepd (pid 4711)". None if it is one
    of our own programs, or a script that uses them. Pid 0 stands for a process outside this pid
    namespace."""
    if pid == 0:
        return "by a process outside this container"
    if pid == os.getpid():
        return None
    try:
        name = (root / str(pid) / "comm").read_text().strip()
        words = procs.arguments(pid, root)
    except OSError:
        return f"by a signal, from a process that is gone (pid {pid})"
    if name == "systemd" or pid == 1:
        return f"by {name or 'pid 1'}: a logout or a shutdown"
    if any(ours in word for ours in _OURS for word in words) or name.startswith("python"):
        return None
    return f"by a signal from {name} (pid {pid})"
