"""Figures of the machine: processor, memory, disk and network. Rates are between two readings."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from gpu_engine.devices.records import HostSample

_DISK_EVERY = 5.0
_DISK_STALE = 30.0
_NO_REAL_LINK = ("lo", "veth", "docker", "br-", "virbr", "cni", "flannel", "cali", "tun", "tap")
"""Prefixes of network interfaces whose bytes never leave the machine, or are counted on a real
interface too."""


@dataclass(frozen=True)
class CoreTimes:
    """Clock ticks since boot of one logical CPU, or of all: proc(5), /proc/stat."""

    busy: int
    total: int


def core_times(stat: Path = Path("/proc/stat")) -> dict[int, CoreTimes]:
    """The ticks of each logical CPU; key -1 is the whole machine.

    psutil is not used, as it leaves out CPUs that are offline when it numbers them; its numbers
    may then differ from the kernel's.
    """
    found = {}
    for line in stat.read_text().splitlines():
        if not line.startswith("cpu"):
            break
        name, *rest = line.split()
        ticks = [int(v) for v in rest[:8]]  # guest time is part of user time already
        idle = ticks[3] + (ticks[4] if len(ticks) > 4 else 0)
        found[int(name[3:] or -1)] = CoreTimes(sum(ticks) - idle, sum(ticks))
    return found


def times() -> dict[int, CoreTimes]:
    """`core_times`; empty if they can't be read."""
    try:
        return core_times()
    except (OSError, ValueError):
        return {}


def busy_share(before: CoreTimes | None, after: CoreTimes | None) -> float | None:
    """The share of the time between two readings that was not idle; None if no time has passed."""
    if before is None or after is None or after.total <= before.total:
        return None
    return min(1.0, max(0.0, (after.busy - before.busy) / (after.total - before.total)))


class DiskWatch:
    """Free bytes on the disk of the runs folder. A thread reads them, as a network file system may
    hang; an answer that is older than half a minute is not used."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._free: int | None = None
        self._at = float("-inf")
        self._thread: threading.Thread | None = None

    def free(self) -> int | None:
        """Bytes free; None if it is not known. Waits at most 0.05 s."""
        now = time.monotonic()
        if self._folder is None:
            return None
        if now - self._at > _DISK_EVERY and not (self._thread and self._thread.is_alive()):
            self._thread = threading.Thread(target=self._read, name="disk", daemon=True)
            self._thread.start()
            self._thread.join(0.05)  # a healthy disk answers at once
        return self._free if time.monotonic() - self._at < _DISK_STALE else None

    def _read(self) -> None:
        folder = self._folder
        while folder is not None:
            try:
                info = os.statvfs(folder)
            except FileNotFoundError:  # the first run creates it, on the disk of its parent
                folder = folder.parent if folder.parent != folder else None
                continue
            except OSError:
                return
            self._free = info.f_bavail * info.f_frsize
            self._at = time.monotonic()
            return


class HostReader:
    """Reads the machine's figures again and again; the first reading has no rates."""

    def __init__(self, runs_folder: Path | None = None) -> None:
        import psutil

        self._psutil = psutil
        self._disk = DiskWatch(runs_folder)
        self._cores = times()
        self._net = self._traffic()
        self._net_at = time.monotonic()

    def read(self) -> HostSample:
        """Read all figures once. Waits at most 0.05 s."""
        cores, before = times(), self._cores
        traffic, traffic_before = self._traffic(), self._net
        now = time.monotonic()
        passed = now - self._net_at
        self._cores, self._net, self._net_at = cores, traffic, now
        used, total = memory()
        rates: list[float | None] = [None, None]
        if traffic is not None and traffic_before is not None and passed > 0:
            # The sum falls when an interface disappears: never show a negative rate.
            rates = [max(0.0, (a - b) / passed) for a, b in zip(traffic, traffic_before)]
        return HostSample(cpu=busy_share(before.get(-1), cores.get(-1)), memory_used=used,
                          memory_total=total, disk_free=self._disk.free(), net_sent=rates[0],
                          net_received=rates[1])

    def _traffic(self) -> tuple[int, int] | None:
        try:
            links = self._psutil.net_io_counters(pernic=True, nowrap=True)
        except (OSError, RuntimeError):
            return None
        real = [v for name, v in links.items() if not name.startswith(_NO_REAL_LINK)]
        if not real:
            return None
        return sum(v.bytes_sent for v in real), sum(v.bytes_recv for v in real)


def memory() -> tuple[int | None, int | None]:
    """(used, total) bytes of the machine's memory, or of this container's if it may use less."""
    known = _memory_of_linux()
    if known is None:
        return None, None
    total, available = known
    limit, inside = cgroup_memory()
    if limit is not None and limit < total:
        return inside, limit
    return total - available, total


def _memory_of_linux(meminfo: Path = Path("/proc/meminfo")) -> tuple[int, int] | None:
    """(total, available) bytes of memory, as psutil tells them, whose import takes longer than all
    else that a launch asks of the machine; None without such a file."""
    total, available = (_field(meminfo, (name,)) for name in ("MemTotal:", "MemAvailable:"))
    return None if total is None or available is None else (total * 1024, available * 1024)


def cgroup_memory(root: Path = Path("/sys/fs/cgroup")) -> tuple[int | None, int | None]:
    """(limit, used) bytes of memory of this process's control group; (None, None) if there is no
    limit. Of all groups that the process is in, the one with the lowest limit counts.

    Version 2 has memory.max and memory.current, version 1 memory.limit_in_bytes and
    memory.usage_in_bytes. Page cache that can be dropped at once counts as free.
    """
    best: tuple[int, int | None] | None = None
    for folder in _cgroup_folders(root, "memory"):
        limit = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
        if limit is None or limit >= 1 << 60 or (best and limit >= best[0]):
            continue
        used = _number(folder / "memory.current")
        if used is None:
            used = _number(folder / "memory.usage_in_bytes")
        cache = _field(folder / "memory.stat", ("inactive_file", "total_inactive_file"))
        best = (limit, max(0, used - (cache or 0)) if used is not None else None)
    return best or (None, None)


def cgroup_cpus(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """How many CPUs' worth of time this control group may use; None if there is no limit."""
    found: list[float] = []
    for folder in _cgroup_folders(root, "cpu"):
        try:
            quota, period = (folder / "cpu.max").read_text().split()
            if quota != "max":
                found.append(int(quota) / int(period))
        except (OSError, ValueError):
            limit = _number(folder / "cpu.cfs_quota_us")
            per = _number(folder / "cpu.cfs_period_us")
            if limit is not None and limit > 0 and per:
                found.append(limit / per)
    return min(found, default=None)


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """The folders of this process's control group and of all groups above it. In a container the
    kernel's path may not exist below the mount; the mount's root is then the container's group."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    folders: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base = root
        elif controller in controllers.split(","):
            base = root / controller
        else:
            continue
        here = base / path.lstrip("/")
        folders += [p for p in (here, *here.parents) if p == base or base in p.parents]
    return [f for f in dict.fromkeys(folders) if f.is_dir()]


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _field(path: Path, names: tuple[str, ...]) -> int | None:
    try:
        pairs = {words[0]: words[1] for line in path.read_text().splitlines()
                 if len(words := line.split()) > 1}
        # Version 1 also has the total below the group.
        return next((int(pairs[name]) for name in reversed(names) if name in pairs), None)
    except (OSError, ValueError):
        return None
