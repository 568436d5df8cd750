"""Leases: one lock per device, so that two launches can't take the same one.

A lease is a `flock` on the device's lease file. The process that owns the run holds it, and the
kernel releases it however that process ends. The file itself stays and says who the holder is or
was; only the lock counts.

These locks keep apart the runs of one person, under one folder. Where root has set up a folder for
all users of the machine, each lease is also a claim there (`gpu_engine.box.claims`), which keeps
apart the runs of different users, and of one user's different folders. Whoever is on a GPU without
either is seen in the driver's process list (`availability.in_the_way`). All are checked before
ranks start.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import os
import re
import socket
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

from gpu_engine.box import claims
from gpu_engine.box import folder as box_folder
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import reason
from gpu_engine.common.frozen import frozen
from gpu_engine.devices.records import Device

_PATIENCE = 0.3
"""Seconds for which a lock is tried again that somebody holds for themselves: a launch that gives
up lets go of what it took."""
_LOOKERS_PATIENCE = 10.0
"""The same while only `holders` is in the way. It holds each lock for some microseconds, or for
longer where the machine is busy and suspends it meanwhile."""


@frozen(slots=True)
class Holder:
    """Who holds a device. Every field but `device` may be unknown, as the file may be read while
    it is being written."""

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
    uid: int | None = None
    """Whose claim it is, if all users of the machine see it."""
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


class Leases:
    """The leases of one run, held until `close` or until this process ends."""

    def __init__(self, held: Iterable[tuple[int, Path, bool]],
                 claimed: claims.Claims | None = None) -> None:
        self._held = list(held)
        self._claimed = claimed

    def close(self) -> None:
        """Release all of them."""
        if self._claimed is not None:  # first, as our own next run takes the lock before it claims
            self._claimed.close()
        for fd, path, shared in self._held:
            if shared:  # the file belongs to this run alone, so no other run can be locking it
                with contextlib.suppress(OSError):
                    path.unlink()
            os.close(fd)
        self._held = []

    def __enter__(self) -> Leases:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def acquire(folder: Path, devices: Iterable[Device], run_id: str, share: bool = False) -> Leases:
    """Take all of `devices` for a run, or none. Raises `UserError`, which says who holds what.

    With `share`, a device that another run holds is taken too. It is then not free while either run
    lives, and a later run that does not share is refused.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    held: list[tuple[int, Path, bool]] = []
    # Sorted, so that of two launches that want the same devices one gets all of them.
    wanted = sorted(devices, key=key)
    for device in wanted:
        about = Holder(
            key(device),
            run=run_id,
            user=_user(),
            pid=os.getpid(),
            host=socket.gethostname(),
            since=time.time(),
            label=device.label,
            shared=share,
        )
        try:
            held.append(_take(folder, about))
        except BlockingIOError:
            Leases(held).close()
            # Perhaps it was released just now, so that `holders` does not know any more.
            raise UserError(_refusal(folder, wanted, [Holder(key(device))]))
        except OSError as error:
            Leases(held).close()
            raise UserError(f"the lease of {device.label} can't be taken: {error}")
    try:
        return Leases(held, _claim(wanted, run_id, share))
    except claims.Taken as taken:
        Leases(held).close()
        raise UserError(_refusal(folder, wanted, map(_of_claim, taken.holders))) from None
    except BaseException:
        Leases(held).close()
        raise


def holders(folder: Path) -> dict[str, Holder]:
    """The holders of all leased devices, by `key`: our own runs', and all users' if they share a
    folder. To find out, each lock is taken for a moment. Raises OSError."""
    own = [h for path in (sorted(folder.glob("*.lock")) if folder.is_dir() else ())
           if (h := _probe(path)) is not None]
    known = {(h.device, h.run) for h in own}
    found: dict[str, Holder] = {}
    for holder in [*own, *(h for h in _claimed()
                           if h.uid != os.geteuid() or (h.device, h.run) not in known)]:
        first = found.get(holder.device)
        if first is None:
            found[holder.device] = holder
        elif first.shared and not holder.shared:
            found[holder.device] = replace(holder, others=(first, *first.others))
        else:
            found[holder.device] = replace(first, others=(*first.others, holder))
    return found


def _refusal(folder: Path, wanted: Iterable[Device], refused: Iterable[Holder]) -> str:
    """The message that says who holds which of the devices: all that are taken."""
    known = {h.device: h for h in refused} | holders(folder)
    taken = [f"{d.label} is held by {known[key(d)]}" for d in wanted if key(d) in known]
    return "; ".join(taken) + ". Take other devices, wait until it ends, or share on purpose"


def _claim(devices: Iterable[Device], run_id: str, share: bool) -> claims.Claims | None:
    """Claim the devices among all users; None if they share no folder. Raises UserError, of which
    `claims.Taken` is one."""
    box = box_folder.find()
    if box is None:
        return None
    wanted, end = {key(d): d.label for d in devices}, time.monotonic() + _PATIENCE
    try:
        while True:
            try:
                return claims.take(box, wanted, run_id, share=share)
            except claims.Taken as taken:
                # Of a killed process of our own, the lock may be gone a moment before the claim.
                own = all(h.uid == os.geteuid() for h in taken.holders)
                if not own or time.monotonic() > end:
                    raise
                time.sleep(0.01)
    except OSError as error:
        raise UserError(
            f"the devices can't be claimed in {box.path}, where all users see who holds what: "
            f"{reason(error)}. Root can mend that; with {box_folder.VARIABLE} set to nothing the "
            "run starts without, and other users don't see it") from error


def _claimed() -> list[Holder]:
    """What all users have claimed. Raises OSError."""
    box = box_folder.find()
    if box is None:
        return []
    return [_of_claim(h) for several in claims.holders(box).values() for h in several]


def _of_claim(claim: claims.Holder) -> Holder:
    return Holder(claim.key, run=claim.run, user=claim.user, pid=claim.pid,
                  host=socket.gethostname(), since=claim.since, label=claim.label,
                  shared=claim.shared, uid=claim.uid)


def _take(folder: Path, about: Holder) -> tuple[int, Path, bool]:
    """Lock the device's file and write the holder into it. Raises `BlockingIOError` if another
    run holds it."""
    name = _file_name(about.device)
    if about.shared:
        name += f"+{_file_name(about.run or '')}-{os.getpid()}"
    path = folder / f"{name}.lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        _lock(fd)
        if not about.shared and any(_probe(p) for p in folder.glob(f"{_escaped(name)}+*.lock")):
            raise BlockingIOError("shared by another run")
        text = asdict(about)
        del text["others"], text["uid"]
        body = json.dumps(text).encode()
        os.ftruncate(fd, 0)
        os.pwrite(fd, body, 0)
    except BaseException:
        os.close(fd)
        raise
    return fd, path, about.shared


def _lock(fd: int) -> None:
    start = time.monotonic()
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = time.monotonic() - start
            if waited > (_PATIENCE if _has_an_owner(fd) else _LOOKERS_PATIENCE):
                raise
            time.sleep(0.01)


def _has_an_owner(fd: int) -> bool:
    """Whether somebody holds the file's lock for themselves. Those who only look share it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def _probe(path: Path) -> Holder | None:
    """Who holds this file's lock; None if nobody does. A shared lock is used to find out, so that
    two programs that look at the same time don't take each other for the holder."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return _parse(path, os.pread(fd, 65536, 0))
    except OSError:
        return None
    finally:
        os.close(fd)


def _parse(path: Path, body: bytes) -> Holder:
    device = re.sub(r"%([0-9a-f]{2})", lambda m: chr(int(m[1], 16)), path.stem.split("+")[0])
    holder = Holder(device, shared="+" in path.stem)
    try:
        given = json.loads(body)
        kinds = {"run": str, "user": str, "pid": int, "host": str, "since": float, "label": str}
        facts = {k: v for k, v in given.items() if isinstance(v, kinds.get(k, ()))}
    except (ValueError, AttributeError):
        return holder
    return replace(holder, **facts)


def _file_name(name: str) -> str:
    """`name` as a file name that any file system accepts and `_parse` can decode."""
    return re.sub(r"[^A-Za-z0-9._@-]", lambda m: f"%{ord(m[0]):02x}", name)


def _escaped(name: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", name)


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name, in a container
        return None
