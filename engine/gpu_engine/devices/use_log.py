"""Who has used which device without a run of ours: holds, and other people's processes for as long
as a panel looked. It stands in `usage/` of the home, a file of lines for each month, which this
user's own programs append to and nothing else reads than `gpu-engine usage`."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from gpu_engine.common import paths
from gpu_engine.common.clean import clean
from gpu_engine.common.records import UnixTime, Whole, within_bounds
from gpu_engine.devices import leases
from gpu_engine.devices.leases import Hold
from gpu_engine.devices.records import Device, Snapshot

SLOT = 600
"""Seconds that one look at another user's process stands for."""
_LONGEST = 64 << 20
"""Bytes of a month that are read."""


@dataclass(frozen=True, slots=True)
class Use:
    """That somebody had a device for a time."""

    user: str
    device: str
    """Its label: "GPU 1", on another machine "GPU 1 on gpu2"."""
    start: float
    """Unix seconds, as is end."""
    end: float
    run: str | None = None
    kind: str = "run"
    """"run", "hold" or "seen": another user's process, in slots of ten minutes in which a panel
    looked."""


class _Line(msgspec.Struct, rename={"begin": "from", "end": "to"}):
    """That a hold has begun or ended, or that another user's process was seen in a slot."""

    hold: str | None = None
    seen: Whole | None = None
    user: str = ""
    devices: list[str] = []
    begin: UnixTime | None = None
    end: UnixTime | None = None


def hold_began(hold: Hold, devices: Iterable[Device]) -> None:
    """Note a hold."""
    _append({"hold": hold.name, "devices": [d.label for d in devices], "from": time.time()})


def hold_ended(name: str) -> None:
    """Note the end of a hold."""
    _append({"hold": name, "to": time.time()})


class Others:
    """Notes other users' processes on GPUs, once a slot for each user and device."""

    def __init__(self) -> None:
        self._slot = 0
        self._noted: set[tuple[str, str]] = set()

    def note(self, shot: Snapshot) -> None:
        """Take in a snapshot. Writes a line for what is new in this slot."""
        slot, me = int(shot.taken) // SLOT, getpass.getuser()
        if slot != self._slot:
            self._slot, self._noted = slot, set()
        users = {(p.user, s.device.label) for s in shot.samples for p in s.processes or ()
                 if p.kind != "graphics" and p.user is not None and p.user != me}
        for user, label in sorted(users - self._noted):
            _append({"seen": slot, "user": user, "devices": [label]})
        self._noted |= users


def read(since: float, now: float) -> tuple[list[Use], int]:
    """What was used between two times, and how many holds are left out, as their process was
    killed and nobody knows when."""
    begun: dict[str, list[Use]] = {}
    seen: set[tuple[int, str, str]] = set()
    uses, me = list[Use](), getpass.getuser()
    for line in _lines(since):
        labels = [clean(label, 80) for label in line.devices[:64]]
        if line.hold is not None and line.begin is not None:
            begun[line.hold] = [Use(me, label, line.begin, now, kind="hold") for label in labels]
        elif line.hold is not None and line.end is not None:
            uses += [replace(use, end=line.end) for use in begun.pop(line.hold, ())]
        elif line.seen is not None and labels:
            # A set: every open panel writes the same slot.
            seen.add((line.seen, clean(line.user, 80), labels[0]))
    uses += [Use(user, label, slot * SLOT, (slot + 1) * SLOT, kind="seen")
             for slot, user, label in seen]
    # A hold without an end goes on, or was killed: only its lock says which.
    live = {file.path.name for file, _ in leases.holds(paths.leases_folder())}
    uses += [use for name in live for use in begun.get(name, ())]
    return [replace(use, start=max(use.start, since), end=min(use.end, now))
            for use in uses if use.start < now and use.end > since], len(begun.keys() - live)


def _folder() -> Path:
    return paths.home() / "usage"


def _append(line: dict[str, Any]) -> None:
    """Losing a line is better than failing a hold or a panel for it."""
    with contextlib.suppress(OSError):
        folder = paths.private_folder(_folder())
        fd = os.open(folder / f"{_month(time.time())}.jsonl", os.O_WRONLY | os.O_CREAT
                     | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, json.dumps(line).encode() + b"\n")
        finally:
            os.close(fd)


def _month(at: float) -> str:
    parts = time.gmtime(at)
    return f"{parts.tm_year}-{parts.tm_mon:02}"


def _lines(since: float) -> Iterator[_Line]:
    # A hold may have begun in the month before.
    first = _month(max(since - 31 * 86400, 0.0))
    with contextlib.suppress(OSError):
        for path in sorted(_folder().glob("????-??.jsonl")):
            if path.stem < first or not stat.S_ISREG(path.lstat().st_mode):
                continue
            with path.open("rb") as file:
                file.seek(max(path.stat().st_size - _LONGEST, 0))
                lines = file.read(_LONGEST).splitlines()
            for line in lines:
                with contextlib.suppress(msgspec.MsgspecError, ValueError, RecursionError):
                    record = msgspec.json.decode(line, type=_Line)
                    if within_bounds(record):
                        yield record
