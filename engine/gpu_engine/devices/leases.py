"""Leases: what each run holds of the devices, so that two launches can't take the same one; and
the line of the runs that wait for them.

A lease is a file with all devices of a run, which counts as long as the process lives that made it.
It is made in a folder of the user's home and, where root has made a folder for all users of the
machine, there as well. Whoever is on a GPU without one is seen in the driver's process list
(`availability.in_the_way`). Both are checked before ranks start.

A waiting run has such a file in a folder `line/`. What stands in it is for `queue/turns.py`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import socket
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import expanded, held, reason, remove_temporary, user_name
from gpu_engine.common.paths import private_folder
from gpu_engine.common.records import Pid, UnixTime, read_record
from gpu_engine.common.values import Bounds
from gpu_engine.devices.records import Device

DEFAULT = Path("/var/lib/gpu-panel")
VARIABLE = "GPU_PANEL_SHARED"
"""The environment variable that names another folder of all users; empty means none."""
LONGEST = 32 << 10
"""Bytes that a lease may have."""
LONGEST_ROOM = 86400.0
"""Seconds for which a run that makes room is waited for at most."""
_HELD_PATIENCE = 0.3
"""Seconds for which a device is asked for again that is held: of a process that is ending, one file
goes a moment after the other."""
_LOCK_PATIENCE = 10.0
"""Seconds to wait for another process to finish what takes a millisecond."""
_NAME = re.compile("[0-9]{19}-[0-9a-f]{8}")
_OURS_TO_MEND = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors of this process or machine: to pass over a file for them would be to overlook a lease."""
_ROOT, _OPEN_TO_ALL = 0, 0o1777


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
    until: float | None = None
    """Unix seconds at which a hold ends; None: it has no end, or it is a run's."""
    why: str | None = None
    """What a person holds the device for, without a run."""
    gives_way: float | None = None
    """Seconds within which the run has made room for whoever waits for the device; None: it does
    not."""
    others: tuple[Holder, ...] = ()
    """The other runs on the same device, if it is shared."""

    @property
    def makes_room(self) -> bool:
        """Whether who holds it makes room for who waits for it: nobody does that shares it."""
        return self.gives_way is not None and not self.others

    def __str__(self) -> str:
        if self.why is not None:
            day = "%H:%M" if self.until and self.until - time.time() < 86400 / 2 else "%b %d %H:%M"
            end = time.strftime(f" until {day}", time.localtime(self.until)) if self.until else ""
            text = f"{self.user or 'somebody'}{end}" + f": {self.why}" * bool(self.why)
            return " and ".join(dict.fromkeys([text, *map(str, self.others)]))
        who = f"run {self.run}" if self.run else "another run"
        if self.user:
            who += f" of {self.user}"
        details = [f"pid {self.pid}"] if self.pid else []
        if self.host and self.host != socket.gethostname():
            details.append(f"on {self.host}")
        if self.since:
            details.append(time.strftime("since %Y-%m-%d %H:%M", time.localtime(self.since)))
        if self.gives_way is not None:
            details.append("gives way")
        text = f"{who} ({', '.join(details)})" if details else who
        return " and ".join(dict.fromkeys([text, *map(str, self.others)]))


def key(device: Device) -> str:
    """The key of a device's lease: its UUID, as an index can change. Without one (a CPU slot, a
    lost GPU): its id and this machine's name, as several machines may share the folder."""
    return device.uuid or f"{device.id}@{socket.gethostname()}"


Leases = contextlib.ExitStack
"""The leases of one run, held until `close` or until this process ends."""


@dataclass(frozen=True, slots=True)
class Hold:
    """What is said of devices that a person holds without a run."""

    name: str
    """The name of the lease's file, see `new_name`."""
    why: str
    until: float | None
    """Unix seconds; None: until the person's command ends."""


def new_name() -> str:
    """A name for a file: nanoseconds and eight hexadecimal digits."""
    return f"{time.time_ns():019d}-{os.urandom(4).hex()}"


def acquire(folder: Path, devices: Iterable[Device], run_id: str | None, share: bool = False,
            hold: Hold | None = None, *, waits: Callable[[str], bool] = lambda _: False,
            gives_way: float | None = None) -> Leases:
    """Take all of `devices` for a run, or none. Raises `UserError`, which says who holds what.
    `hold`: for whom there is no run.

    With `share`, a device that another run holds is taken too. It is then not free while either run
    lives, and a later run that does not share is refused.

    Where runs hold them that make room (run.give_way), those are waited for. `waits`: is told so
    again and again, in words that follow "waits for"; returns whether to give up. `gives_way`: as
    of `Holder`.
    """
    wanted = list(devices)
    end, standing = time.monotonic() + _HELD_PATIENCE, Leases()
    stands = False  # in the line
    with standing:
        while True:
            try:
                with alone(folder):
                    taken = {} if share else holders(folder)
                    found = {d.label: taken[key(d)] for d in wanted if key(d) in taken}
                    if not found:
                        return take(folder, wanted, run_id, share, hold, gives_way)
                    if not stands and all(holder.makes_room for holder in found.values()):
                        # A place in the line is what those who make room look for.
                        standing.enter_context(wait(folder, {
                            "run": run_id or "", "queue": "", "ids": [key(d) for d in wanted],
                            "cpu": all(d.is_cpu for d in wanted)}, new_name()))
                        stands, end = True, time.monotonic() + max(
                            holder.gives_way or 0.0 for holder in found.values())
            except OSError as error:
                raise UserError(f"the devices can't be leased: {error.filename or folder}: "
                                f"{reason(error)} (with {VARIABLE} set to nothing the run starts "
                                "without the folder of all users)") from error
            who = "; ".join(f"{label} is held by {holder}" for label, holder in found.items())
            if time.monotonic() > end or (stands and waits(" and ".join(dict.fromkeys(
                    f"run {h.run} to make room" for h in found.values())))):
                raise UserError(who + (
                    ". Take other devices, or wait until it ends" if hold is not None else
                    ". Take other devices, wait until it ends, or share on purpose"))
            time.sleep(0.2 if stands else 0.01)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Be the only one who looks at leases and waiting runs and makes some. Raises OSError;
    TimeoutError if another has had the lock for too long, as a process that was stopped."""
    private_folder(folder)
    # A home on NFS locks files only, and those opened for writing. The folder of all users is on a
    # local disk, where a folder can be locked: nobody has to make a file that all may open.
    locks = [(folder / "lock", os.O_RDWR | os.O_CREAT),
             *((place, os.O_DIRECTORY) for place in _of_all_users("claims"))]
    end = time.monotonic() + _LOCK_PATIENCE
    with contextlib.ExitStack() as stack:
        for path, flags in locks:
            fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, fd)
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise TimeoutError(errno.ETIMEDOUT, "another launch, perhaps a stopped "
                                           "one, has had it locked for too long",
                                           os.fspath(path)) from None
                    time.sleep(0.005)
        yield


def take(folder: Path, devices: Iterable[Device], run_id: str | None, share: bool,
         hold: Hold | None = None, gives_way: float | None = None) -> Leases:
    """Make the lease of these devices, whoever has one already; see `alone`. `gives_way`: as of
    `Holder`. Raises OSError."""
    said = {"run": run_id, "pid": os.getpid(), "host": socket.gethostname(), "shared": share,
            "gives_way": gives_way, "devices": [{"key": key(d), "label": d.label} for d in devices]}
    if hold is not None:
        said |= {"pid": None, "why": hold.why, "until": hold.until}
    return make([folder, *_of_all_users("claims")], said, hold.name if hold else new_name())


def let_go(folder: Path, name: str) -> None:
    """Remove a lease of this user's; the process that keeps it ends by itself. Raises OSError."""
    for place in (folder, *_of_all_users("claims")):
        (place / name).unlink(missing_ok=True)


def holds(folder: Path) -> list[tuple[File, tuple[str, ...]]]:
    """This user's holds, who came first first, and the labels of the devices of each. Raises
    OSError."""
    found = []
    for file in read(folder):
        with contextlib.suppress(ValueError):
            said = read_record(_Said, file.said)
            if file.live and file.mine and said.why is not None:
                found.append((file, tuple(leased.label for leased in said.devices)))
    return found


def holders(folder: Path) -> dict[str, Holder]:
    """The holders of all leased devices, by `key`: our own runs', and all users' if they share a
    folder. Removes what is left of runs of ours. Raises OSError."""
    live: dict[str, File] = {}
    for file in (file for place in (folder, *_of_all_users("claims")) for file in read(place)):
        if file.live:
            live.setdefault(file.path.name, file)
        elif file.mine:
            with contextlib.suppress(OSError):
                file.path.unlink()
    each: list[Holder] = []
    for file in live.values():
        with contextlib.suppress(ValueError):  # nonsense
            said = read_record(_Said, file.said)
            theirs = said.host not in (None, "", socket.gethostname())
            with contextlib.suppress(OSError):  # it can't be seen from here
                # Nobody is led to another user's process.
                theirs = theirs or Path(f"/proc/{said.pid}").stat().st_uid == file.uid
            each += [Holder(leased.key, said.run and clean(said.run, 200), file.user,
                            said.pid if theirs else None,
                            said.host and clean(said.host, 200), file.made,
                            clean(leased.label, 200), said.shared, said.until,
                            None if said.why is None else clean(said.why, 200), said.gives_way)
                     for leased in said.devices]
    found: dict[str, Holder] = {}
    # Who takes it alone stands before those who share it.
    for holder in sorted(each, key=lambda h: (h.shared, h.since or 0.0)):
        first = found.setdefault(holder.device, holder)
        if first is not holder:
            found[holder.device] = replace(first, others=(*first.others, holder))
    return found


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
    until: UnixTime | None = None
    why: str | None = None
    gives_way: Annotated[float, Bounds(ge=0, le=LONGEST_ROOM)] | None = None


# --- the line of waiting runs ---------------------------------------------------------------------

def wait(folder: Path, said: Mapping[str, Any], name: str) -> Leases:
    """Make the file of a waiting run. `name`: nanoseconds and eight hexadecimal digits, by which
    the line is sorted. Raises OSError."""
    return make(_lines(folder), said, name)


def waiting(folder: Path) -> list[File]:
    """The files of the waiting runs of this user, and of all users if they share a folder; who came
    first first. Also of those whose supervisor has died. Raises OSError."""
    found = {file.path.name: file for place in _lines(folder) for file in read(place)}
    return [found[name] for name in sorted(found)]


def forget(folder: Path, name: str) -> None:
    """Remove what a dead supervisor has left in the line. Raises OSError."""
    for place in _lines(folder):
        (place / name).unlink(missing_ok=True)


def stamp(folder: Path) -> tuple[int, ...]:
    """Another one after a lease was made or let go, or a waiting run came or went. Raises OSError.
    """
    return tuple(place.stat().st_mtime_ns
                 for place in (folder, *_of_all_users("claims"), *_lines(folder)))


def _lines(folder: Path) -> list[Path]:
    own = folder / "line"
    private_folder(own)
    return [own, *_of_all_users("line")]


# --- files that count while a process of their owner lives ----------------------------------------
#
# A file is written and locked (`flock`) under another name, and then gets its own. So a file that
# nobody has locked is dead for good, however its process ended; pids decide nothing. The name
# begins with the time at which it was made: sorted by name, who came first is first. Its owner is
# who made it, as the kernel says; all that stands in it is that person's word.
#
# Other users could keep a dead file alive with a lock, and are trusted not to (docs/trust.md). What
# else lies in the folder is passed over without waiting for it: FIFOs, links, folders, files that
# can't be read, are too long or say nothing.


@dataclass(frozen=True, slots=True)
class File:
    """Such a file of any user, this one's included."""

    path: Path
    uid: int
    live: bool
    said: Mapping[str, Any]

    @property
    def mine(self) -> bool:
        """Whether it is this user's."""
        return self.uid == os.geteuid()

    @property
    def made(self) -> float:
        """Unix seconds."""
        return int(self.path.name[:19]) / 1e9

    @property
    def user(self) -> str:
        """The owner's name."""
        return clean(user_name(self.uid), 40)


def make(places: Iterable[Path], said: Mapping[str, Any], name: str) -> Leases:
    """Make the same file in each of these folders, or in none. Raises OSError."""
    with Leases() as files:
        for place in places:
            path = place / name
            new = place / f".{name}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
            remove_temporary(place)
            fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            files.callback(os.close, fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                body = json.dumps(said).encode()
                if os.write(fd, body) < len(body):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path))
                if place.stat().st_mode & stat.S_IWOTH:
                    os.fchmod(fd, 0o644)  # whatever the umask
                new.rename(path)
            except BaseException:
                new.unlink(missing_ok=True)
                raise
            files.callback(_unlink, path)
        return files.pop_all()


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def read(folder: Path) -> list[File]:
    """All such files, who came first first. Raises OSError if the folder can't be read, or if this
    process can't open more files."""
    try:
        names = sorted(filter(_NAME.fullmatch, os.listdir(folder)))  # noqa: PTH208
    except FileNotFoundError:
        return []
    files = []
    for path in (folder / name for name in names):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY
                         | os.O_CLOEXEC)
            try:
                about = os.fstat(fd)
                if stat.S_ISREG(about.st_mode) and about.st_size <= LONGEST:
                    said = json.loads(os.pread(fd, LONGEST, 0))
                    if isinstance(said, dict):
                        files.append(File(path, about.st_uid, held(fd), said))
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno in _OURS_TO_MEND:
                raise
        except (ValueError, RecursionError):
            continue
    return files


# --- the folder that all users of a machine share -------------------------------------------------
#
# Root makes it once. It has two folders, `claims/` (leases) and `line/` (waiting runs), in which
# anybody may make files and nobody may remove another's (the sticky bit). Where there is none, runs
# of different users don't know of each other.


def where() -> Path | None:
    """Where the folder is, or would be; None if `GPU_PANEL_SHARED` is empty."""
    given = os.environ.get(VARIABLE)
    if given is None:
        return DEFAULT
    return expanded(given).absolute() if given else None


def set_up(path: Path) -> str:
    """What root types to make the folder."""
    return f"sudo install -d -m 1777 {path / 'claims'} {path / 'line'}"


def why_not() -> str | None:
    """Why the folder that is there can't be used, and what would do; None if it can be, or if
    there is none."""
    path = where()
    if path is None or (not os.path.lexists(path) and VARIABLE not in os.environ):
        return None
    return None if (wrong := _wrong(path)) is None else (
        f"the folder that users share is not used, so runs of other users are not seen: {wrong}. "
        f"Root can make it: {set_up(path)}")


def _of_all_users(name: str) -> list[Path]:
    """The folder of this name that all users share; none if it can't be used, see `why_not`."""
    path = where()
    return [path / name] if path is not None and _wrong(path) is None else []


def _wrong(path: Path) -> str | None:
    """Why the folder can't be used: somebody besides root could put something else in the place of
    it or of a folder around it. In a sticky one, such as /tmp, nobody can."""
    boxes = (path / "claims", path / "line")
    for folder in (*reversed(path.parents), path, *boxes):
        try:
            about = folder.lstat()
        except OSError as error:
            return f"{folder}: {reason(error)}"
        mode = stat.S_IMODE(about.st_mode)
        if not stat.S_ISDIR(about.st_mode):
            return f"{folder} is {'a symlink' if stat.S_ISLNK(about.st_mode) else 'not a folder'}"
        if about.st_uid != _ROOT:
            return f"{folder} belongs to uid {about.st_uid}, not to root"
        if mode & (stat.S_IWGRP | stat.S_IWOTH) and not mode & stat.S_ISVTX:
            return f"others than root may replace what is in {folder} (its mode is {mode:04o})"
        if folder in boxes and mode != _OPEN_TO_ALL:
            return f"{folder} has the mode {mode:04o}, not {_OPEN_TO_ALL:04o}"
    return None
