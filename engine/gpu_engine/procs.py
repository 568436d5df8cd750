"""Which process is meant: a pid alone is not enough, as pids are used again.

Standard library only; Linux's /proc.
"""

from __future__ import annotations

from pathlib import Path


def start_ticks(pid: int) -> int | None:
    """When `pid` started, in clock ticks since boot (proc(5), stat field 22); None if gone.

    A zombie counts as gone: nothing of it runs any more.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the command may hold spaces and brackets
    return None if fields[0] in "ZX" else int(fields[19])


def boot_id() -> str | None:
    """This boot's id: start ticks of two boots can't be compared."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def alive(pid: int | None, ticks: int | None) -> bool:
    """Whether the process known by pid and start ticks still runs."""
    return pid is not None and ticks is not None and start_ticks(pid) == ticks


def suspended(pid: int) -> bool:
    """Whether the process was stopped by a signal (SIGSTOP, ctrl+z) and waits for SIGCONT."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[:1] == ["T"]
