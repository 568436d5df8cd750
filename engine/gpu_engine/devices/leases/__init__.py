"""Leases: what each run holds of the devices, so that two launches can't take the same one; and
the line of the runs that wait for them.

A lease is a file (`held`) with all devices of a run, which counts as long as the process lives that
made it. It is made in a folder of the user's home and, where root has set up a folder for all users
of the machine (`shared`), there as well. Whoever is on a GPU without one is seen in the driver's
process list (`availability.in_the_way`). Both are checked before ranks start.

A waiting run has such a file in the folder `line/` beside the leases. What stands in it is for
`queue/turns.py`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import reason
from gpu_engine.common.records import Pid, read_record
from gpu_engine.devices.leases import held, shared
from gpu_engine.devices.records import Device

_PATIENCE = 0.3
"""Seconds for which a device is asked for again that is held: of a process that is ending, one file
goes a moment after the other."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a device, by the file's owner and otherwise in the holder's own words: every field
    but `device` may be unknown. Texts are harmless to show."""

    device: str
    """The key of the device, see `key`."""
    run: str | None = None
    user: str | None = None
    pid: int | None = None
    host: str | None = None
    since: float | None = None
    """Unix seconds."""
    label: str | None = None
    """The device's label when it was taken ("GPU 1")."""
    shared: bool = False
    """Whether the run takes the device together with other runs."""
    others: tuple[Holder, ...] = ()
    """The other runs on the same device, if it is shared."""

    def __str__(self) -> str:
        who = f"run {self.run}" if self.run else "another run"
        if self.user:
            who += f" of {self.user}"
        details = [f"pid {self.pid}"] if self.pid else []
        if self.host and self.host != socket.gethostname():
            details.append(f"on {self.host}")
        if self.since:
            details.append(time.strftime("since %Y-%m-%d %H:%M", time.localtime(self.since)))
        text = f"{who} ({', '.join(details)})" if details else who
        return " and ".join([text, *map(str, self.others)])


def key(device: Device) -> str:
    """The key of a device's lease: its UUID, as an index can change. Without one (a CPU slot, a
    lost GPU): its id and this machine's name, as several machines may share the folder."""
    return device.uuid or f"{device.id}@{socket.gethostname()}"


Leases = contextlib.ExitStack
"""The leases of one run, held until `close` or until this process ends."""


def acquire(folder: Path, devices: Iterable[Device], run_id: str, share: bool = False) -> Leases:
    """Take all of `devices` for a run, or none. Raises `UserError`, which says who holds what.

    With `share`, a device that another run holds is taken too. It is then not free while either run
    lives, and a later run that does not share is refused.
    """
    wanted = list(devices)
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            with alone(folder):
                taken = {} if share else holders(folder)
                refused = [f"{d.label} is held by {taken[key(d)]}" for d in wanted
                           if key(d) in taken]
                if not refused:
                    return take(folder, wanted, run_id, share)
        except OSError as error:
            raise _not_made(folder, error) from error
        if time.monotonic() > end:
            raise UserError("; ".join(refused) + ". Take other devices, wait until it ends, or "
                            "share on purpose")
        time.sleep(0.01)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Be the only one who looks at leases and waiting runs and makes some. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(held.alone(folder / "lock"))
        if (box := shared.find()) is not None:
            stack.enter_context(held.alone(box.lock))
        yield


def take(folder: Path, devices: Iterable[Device], run_id: str, share: bool) -> Leases:
    """Make the lease of these devices, whoever has one already; see `alone`. Raises OSError."""
    return _made(_places(folder), {
        "run": run_id, "pid": os.getpid(), "host": socket.gethostname(), "shared": share,
        "devices": [{"key": key(d), "label": d.label} for d in devices]})


def wait(folder: Path, said: Mapping[str, Any], name: str) -> Leases:
    """Make the file of a waiting run, named as by `held.name`. Raises OSError."""
    return _made(lines(folder), said, name)


def waiting(folder: Path) -> list[held.Found]:
    """The files of the waiting runs of this user, and of all users if they share a folder; who came
    first first. Also of those whose supervisor has died. Raises OSError."""
    found = {file.path.name: file for place in lines(folder) for file in held.read(place)}
    return [found[name] for name in sorted(found)]


def lines(folder: Path) -> list[Path]:
    """The folders with the files of waiting runs: this user's, and the one that users share if
    there is one. Raises OSError."""
    own = folder / "line"
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    return [own, *([box.line] if (box := shared.find()) is not None else [])]


def stamp(folder: Path) -> tuple[int, ...]:
    """Another one after a lease was made or let go, or a waiting run came or went. Raises OSError.
    """
    return tuple(place.stat().st_mtime_ns for place in (*_places(folder), *lines(folder)))


def forget(folder: Path, name: str) -> None:
    """Remove what a dead supervisor has left in the line. Raises OSError."""
    for place in lines(folder):
        (place / name).unlink(missing_ok=True)


def _made(places: Iterable[Path], said: Mapping[str, Any], name: str = "") -> Leases:
    """Make the same file in each of these folders, or in none. Raises OSError."""
    with Leases() as files:
        for place in places:
            file = held.make(place, said, name)
            files.callback(file.close)
            name = file.path.name
        return files.pop_all()


def holders(folder: Path) -> dict[str, Holder]:
    """The holders of all leased devices, by `key`: our own runs', and all users' if they share a
    folder. Raises OSError."""
    found: dict[str, Holder] = {}
    # Who takes it alone stands before those who share it.
    for holder in sorted(_holders(folder), key=lambda h: (h.shared, h.since or 0.0)):
        first = found.setdefault(holder.device, holder)
        if first is not holder:
            found[holder.device] = replace(first, others=(*first.others, holder))
    return found


def _places(folder: Path) -> list[Path]:
    """The folders in which leases are."""
    return [folder, *([box.claims] if (box := shared.find()) is not None else [])]


def _not_made(folder: Path, error: OSError) -> UserError:
    where = str(error.filename or folder)
    more = "" if where.startswith(str(folder)) else (
        f". Root can mend the folder of all users; with {shared.VARIABLE} set to nothing the run "
        "starts without, and other users don't see it")
    return UserError(f"the devices can't be leased: {where}: {reason(error)}{more}")


def _holders(folder: Path) -> Iterator[Holder]:
    """Who holds a device, once for each device of a lease. Removes what is left of runs of ours."""
    live: dict[str, held.Found] = {}
    for place in _places(folder):
        for file in held.read(place):
            if file.live:
                live.setdefault(file.path.name, file)
            elif file.mine:
                with contextlib.suppress(OSError):
                    file.path.unlink()
    for file in live.values():
        with contextlib.suppress(ValueError):  # nonsense
            yield from _read(file)


@dataclass(frozen=True, slots=True)
class _Leased:
    key: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class _Said:
    devices: tuple[_Leased, ...]
    run: str | None = None
    pid: Pid | None = None
    host: str | None = None
    shared: bool = False


def _read(file: held.Found) -> list[Holder]:
    """Raises ValueError if the file says nothing sensible."""
    said = read_record(_Said, file.said)
    here = not said.host or said.host == socket.gethostname()
    return [Holder(
        leased.key, run=said.run and clean(said.run, 200), user=file.user,
        pid=said.pid if said.pid and (not here or _is_theirs(said.pid, file.uid)) else None,
        host=said.host and clean(said.host, 200), since=file.made,
        label=clean(leased.label, 200), shared=said.shared)
        for leased in said.devices]


def _is_theirs(pid: int, uid: int) -> bool:
    """Whether this process is seen from here and is the user's: nobody is led to another's."""
    try:
        return os.stat(f"/proc/{pid}").st_uid == uid  # noqa: PTH116
    except OSError:
        return False
