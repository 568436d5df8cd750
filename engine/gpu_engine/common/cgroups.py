"""What this process may use of its machine's memory and processors, as its control groups say.

Standard library only: a rank imports this in any environment that has torch.
"""

from __future__ import annotations

import contextlib
from pathlib import Path


def memory() -> tuple[int | None, int | None]:
    """(used, total) bytes of the machine's memory, or of this container's if it may use less.
    Without psutil, whose import takes longer than all else that a launch asks of the machine."""
    total, available = (field(Path("/proc/meminfo"), name)
                        for name in ("MemTotal:", "MemAvailable:"))
    if total is None or available is None:
        return None, None
    limit, inside = memory_limit()
    if limit is not None and limit < total * 1024:
        return inside, limit
    return (total - available) * 1024, total * 1024


def memory_limit(root: Path = Path("/sys/fs/cgroup")) -> tuple[int | None, int | None]:
    """(limit, used) bytes of memory of this process's control group; (None, None) if there is no
    limit. Of all groups that the process is in, the one with the lowest limit counts.

    Version 2 alone: memory.max and memory.current. Page cache that can be dropped at once counts as
    free.
    """
    limits = [(limit, folder) for folder in _cgroup_folders(root)
              if (limit := _number(folder / "memory.max")) is not None]
    if not limits:
        return None, None
    limit, folder = min(limits, key=lambda pair: pair[0])
    used, cache = _number(folder / "memory.current"), field(folder / "memory.stat",
                                                             "inactive_file")
    return limit, None if used is None else max(0, used - (cache or 0))


def cpus(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """How many CPUs' worth of time this control group may use; None if there is no limit."""
    shares: list[float] = []
    for folder in _cgroup_folders(root):
        with contextlib.suppress(OSError, ValueError):  # "max 100000": no limit
            quota, period = map(int, (folder / "cpu.max").read_text().split())
            shares.append(quota / period)
    return min(shares, default=None)


def _cgroup_folders(root: Path) -> list[Path]:
    """The folders of this process's control group and of all groups above it. In a container the
    kernel's path may not exist below the mount; the mount's root is then the container's group."""
    try:
        _, _, path = Path("/proc/self/cgroup").read_text().rpartition("0::/")
    except OSError:
        path = ""
    here = root / path.strip()
    return [p for p in (here, *here.parents) if (p == root or root in p.parents) and p.is_dir()]


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def field(path: Path, name: str) -> int | None:
    """The number behind a name, of a file with lines such as "MemTotal: 65536 kB"."""
    try:
        lines = (line.split() for line in path.read_text().splitlines())
        return next((int(words[1]) for words in lines if words[:1] == [name]), None)
    except (OSError, ValueError, IndexError):
        return None
