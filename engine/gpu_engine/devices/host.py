"""Figures of the machine (processor, memory, disk) and of the processes on its GPUs.

Rates are between two readings. Standard library only.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from gpu_engine.common import procs
from gpu_engine.common.cgroups import field, memory
from gpu_engine.common.clean import clean, shown_words
from gpu_engine.common.files import user_name
from gpu_engine.devices import containers
from gpu_engine.devices.records import DeviceProcess, HostSample, ProcessKind

_DISK_EVERY = 5.0
_DISK_STALE = 30.0
_TICK, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
_FORGOTTEN = 60.0
"""Seconds after which a process that is no longer looked up is forgotten."""


@dataclass(frozen=True)
class CoreTimes:
    """Clock ticks since boot of one logical CPU, or of all: proc(5), /proc/stat."""

    busy: int
    total: int


def core_times(stat: Path = Path("/proc/stat")) -> dict[int, CoreTimes]:
    """The ticks of each logical CPU; key -1 is the whole machine; empty if they can't be read.

    psutil is not used, as it leaves out CPUs that are offline when it numbers them; its numbers
    may then differ from the kernel's.
    """
    found: dict[int, CoreTimes] = {}
    with contextlib.suppress(OSError):
        for line in stat.read_text().splitlines():
            if not line.startswith("cpu"):
                break
            name, *rest = line.split()
            ticks = [int(v) for v in rest[:8]]  # guest time is part of user time already
            idle = ticks[3] + ticks[4]
            found[int(name[3:] or -1)] = CoreTimes(sum(ticks) - idle, sum(ticks))
    return found


def busy_share(before: CoreTimes | None, after: CoreTimes | None) -> float | None:
    """The share of the time between two readings that was not idle; None if no time has passed."""
    if before is None or after is None or after.total <= before.total:
        return None
    return min(1.0, max(0.0, (after.busy - before.busy) / (after.total - before.total)))


class DiskWatch:
    """Free bytes on the disk of the runs folder. A thread reads them, as a network file system may
    hang; an answer that is older than half a minute is not used."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._free: int | None = None
        self._at = -math.inf
        self._thread: threading.Thread | None = None

    def free(self) -> int | None:
        """Bytes free; None if it is not known. Waits at most 0.05 s."""
        if time.monotonic() - self._at > _DISK_EVERY and not (
                self._thread and self._thread.is_alive()):
            self._thread = threading.Thread(target=self._read, name="disk", daemon=True)
            self._thread.start()
            self._thread.join(0.05)  # a healthy disk answers at once
        return self._free if time.monotonic() - self._at < _DISK_STALE else None

    def _read(self) -> None:
        for folder in (self._folder, *self._folder.parents):
            try:
                info = os.statvfs(folder)
            except FileNotFoundError:  # the first run creates it, on the disk of its parent
                continue
            except OSError:
                return
            self._free, self._at = info.f_bavail * info.f_frsize, time.monotonic()
            return


class HostReader:
    """Reads the machine's figures again and again; the first reading has no rates."""

    def __init__(self, runs_folder: Path | None = None) -> None:
        self._disk = DiskWatch(runs_folder) if runs_folder is not None else None
        self._cores = core_times()

    def read(self) -> HostSample:
        """Read all figures once. Waits at most 0.05 s."""
        cores, self._cores = self._cores, core_times()
        used, total = memory()
        return HostSample(cpu=busy_share(cores.get(-1), self._cores.get(-1)), memory_used=used,
                          memory_total=total, disk_free=self._disk and self._disk.free())


class Owners:
    """Looks up the processes on GPUs, and remembers them by pid and start time, as pids are reused.

    Backends use it in the probe's process, as reading /proc can hang together with a driver. Per
    process, its stat is read each time, its user and command only once.
    """

    def __init__(self, proc: Path = procs.PROC,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._proc, self._clock = proc, clock
        self._known: dict[tuple[int, int], tuple[DeviceProcess, float, float]] = {}
        """By pid and start: the process, the seconds that it had computed, and when that was."""
        self._boot = field(proc / "stat", "btime")

    def find(self, pid: int) -> DeviceProcess | None:
        """What /proc says of a process; None if it can't be seen from this pid namespace. Its share
        of a core is that since the lookup before; None at the first."""
        stat = procs.stat(pid, self._proc) if pid > 0 else None
        if stat is None or stat.ended:
            return None
        now, seconds, cpu = self._clock(), stat.cpu_ticks / _TICK, None
        key = pid, stat.start_ticks
        if key in self._known:
            process, before, at = self._known[key]
            if now - at < 0.05:
                return process  # the same process on a second GPU, in the same reading
            cpu = max(0.0, (seconds - before) / (now - at))
        else:
            for other, (_, _, at) in list(self._known.items()):
                if now - at > _FORGOTTEN:  # it is on no GPU any more
                    self._known.pop(other, None)
            process = DeviceProcess(
                pid, user=self._user(pid), command=self._command(pid) or stat.name or None,
                container=containers.of_process(pid, self._proc), run=self._run(pid),
                started=None if self._boot is None else self._boot + stat.start_ticks / _TICK)
        process = replace(process, host_memory=stat.resident_pages * _PAGE, cpu=cpu)
        self._known[key] = process, seconds, now
        return process

    def process(self, pid: int, memory: int | None, kind: ProcessKind,
                utilization: float | None = None) -> DeviceProcess:
        """A process on a device, as its driver and /proc tell of it."""
        process = self.find(pid) or DeviceProcess(pid, visible=False)
        return replace(process, memory=memory, kind=kind, utilization=utilization)

    def _user(self, pid: int) -> str | None:
        try:
            return user_name((self._proc / str(pid)).stat().st_uid)
        except OSError:
            return None

    def _run(self, pid: int) -> str | None:
        try:
            words = (word.partition(b"=") for word in procs.environment(pid, self._proc))
            path = next((path for name, _, path in words if name == b"GPU_PANEL_RUN"), b"")
        except OSError:
            return None
        return clean(path.rpartition(b"/")[2].decode(errors="replace"), 200) or None

    def _command(self, pid: int) -> str:
        try:
            words = procs.arguments(pid, self._proc)
        except OSError:
            return ""
        said = b"\0".join(words)[:4096].decode(errors="replace")
        return " ".join(shown_words(said.split("\0"))).strip()
