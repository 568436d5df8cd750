"""The user, command and figures of a process on a GPU, from /proc.

Backends call this in the probe's process, as reading /proc can hang together with a driver. Per
process, its stat is read each time, its user and command only once. Standard library only.
"""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from gpu_engine.common import procs
from gpu_engine.devices.records import DeviceProcess, ProcessKind

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the machine's own pid namespace (PROC_PID_INIT_INO in Linux' proc_ns.h)."""

_FORGOTTEN = 60.0
"""Seconds after which a process that is no longer looked up is forgotten."""


@dataclass(slots=True)
class _Known:
    found: DeviceProcess
    seconds: float
    """Processor time that it had used at the last lookup."""
    at: float


class Owners:
    """Looks processes up, and remembers them by pid and start time, as pids are reused."""

    def __init__(self, device_files: str, proc: Path = procs.PROC,
                 clock: Callable[[], float] = time.monotonic) -> None:
        """`device_files`: the beginning of the paths of the vendor's device files."""
        self._device_files = device_files
        self._proc = proc
        self._clock = clock
        self._known: dict[tuple[int, int], _Known] = {}
        self._users: dict[int, str] = {}
        self._boot = _boot_time(proc)
        # In a container the driver still names the machine's pids. The same number may belong to
        # another process in here, so a process counts only if it has a device file open.
        self._doubt = _inode(proc / "self/ns/pid") != _FIRST_PID_NAMESPACE and _any(device_files)

    def find(self, pid: int) -> DeviceProcess | None:
        """What /proc says of a process; None if it can't be seen from this pid namespace. Its share
        of a core is that since the lookup before; None at the first."""
        if pid <= 0:
            return None
        stat = procs.stat(pid, self._proc)
        if stat is None or stat.ended or (self._doubt and not self._holds_gpu(pid)):
            return None
        ticks, seconds = stat.start_ticks, stat.cpu_ticks / _TICK
        now = self._clock()
        known = self._known.get((pid, ticks))
        cpu = None
        if known is None:
            self._forget(now)
            started = self._boot + ticks / _TICK if self._boot is not None else None
            known = self._known[pid, ticks] = _Known(DeviceProcess(
                pid, user=self._user(pid), command=self._command(pid) or stat.name or None,
                started=started), seconds, now)
        elif now - known.at < 0.05:
            return known.found  # the same process on a second GPU, in the same reading
        else:
            cpu = max(0.0, (seconds - known.seconds) / (now - known.at))
            known.seconds, known.at = seconds, now
        known.found = replace(known.found, host_memory=stat.resident_pages * _PAGE, cpu=cpu)
        return known.found

    def process(self, pid: int, memory: int | None, kind: ProcessKind, utilization: float | None
                ) -> DeviceProcess:
        """A process on a device, as its driver and /proc tell of it."""
        found = self.find(pid) or DeviceProcess(pid, visible=False)
        return replace(found, memory=memory, kind=kind, utilization=utilization)

    def _forget(self, now: float) -> None:
        """Drop the processes that were not looked up for a while: they are on no GPU any more."""
        for key in [k for k, v in list(self._known.items()) if now - v.at > _FORGOTTEN]:
            self._known.pop(key, None)

    def _user(self, pid: int) -> str | None:
        try:
            uid = (self._proc / str(pid)).stat().st_uid
        except OSError:
            return None
        if uid not in self._users:
            try:
                self._users[uid] = pwd.getpwuid(uid).pw_name
            except KeyError:  # a user of the host that the container does not know
                self._users[uid] = str(uid)
        return self._users[uid]

    def _command(self, pid: int) -> str:
        try:
            words = procs.arguments(pid, self._proc)
        except OSError:
            return ""
        return b" ".join(words)[:4096].decode(errors="replace").strip()

    def _holds_gpu(self, pid: int) -> bool:
        try:
            return any(str(link.readlink()).startswith(self._device_files)
                       for link in (self._proc / str(pid) / "fd").iterdir())
        except OSError:
            return False


def _boot_time(proc: Path) -> float | None:
    try:
        for line in (proc / "stat").read_text().splitlines():
            if line.startswith("btime "):
                return float(line.split()[1])
    except OSError:
        pass
    return None


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _any(device_files: str) -> bool:
    """Whether any of these device files is visible here, so that a process can have it open."""
    folder, _, start = device_files.rpartition("/")
    try:
        return any(name.startswith(start) for name in os.listdir(folder or "/"))  # noqa: PTH208
    except OSError:
        return False
