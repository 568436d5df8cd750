"""Claims: what each user's runs hold of this machine's devices.

A claim is a notice (`notices`) with all devices of one run. It counts as long as the process that
posted it lives, so it goes with the supervisor of the run, however that ends. How two takers are
kept from having the same device is in `taking`.

What a claim says besides is its owner's word and only shown: run, labels, since when. A pid is
shown only if that process belongs to the owner, so that nobody is led to somebody else's.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping

from gpu_engine.box import notices, said, taking, users
from gpu_engine.box.folder import Box
from gpu_engine.common.errors import UserError
from gpu_engine.common.frozen import frozen

MOST = 256
"""How many claims of one user count."""
_MOST_DEVICES = 128
_PATIENCE = 2.0
"""Seconds for which a taker tries while others try, too."""
_LONGER = 1.0
"""Seconds more, for the one before whom the others withdraw."""
_TRYING, _HELD = b"t", b"h"


class Taken(UserError):
    """Somebody else holds some of the devices."""

    def __init__(self, holders: tuple[Holder, ...]) -> None:
        self.holders = holders
        super().__init__("; ".join(f"{h.label} is held by {h}" for h in holders))


@frozen(slots=True)
class Holder:
    """Who holds a device. Texts are harmless to show."""

    key: str
    label: str
    """What its holder calls the device: "GPU 1"."""
    uid: int
    user: str
    run: str | None
    said_pid: int
    """What its owner says. See `pid`."""
    since: float
    """Unix seconds, by this machine's present clock."""
    shared: bool
    """Whether its run takes the device together with other runs."""

    @property
    def pid(self) -> int | None:
        """The process that holds it, if it is seen from here now and is the user's."""
        return self.said_pid if users.own_process(self.said_pid, self.uid) else None

    def __str__(self) -> str:
        pid = f"pid {pid}, " if (pid := self.pid) else ""
        since = time.strftime("since %Y-%m-%d %H:%M", time.localtime(self.since))
        return f"{f'run {self.run}' if self.run else 'a run'} of {self.user} ({pid}{since})"


class Claims:
    """The devices that this process has claimed, until `close` or until it ends."""

    def __init__(self, posted: notices.Posted) -> None:
        self._posted = posted

    def close(self) -> None:
        """Let go of all of them."""
        self._posted.close()

    def __enter__(self) -> Claims:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def take(box: Box, devices: Mapping[str, str], run: str | None = None, *, share: bool = False,
         patience: float = _PATIENCE) -> Claims:
    """Claim all of these devices (key to label), or none.

    With `share` they are claimed whoever else holds them. Else any other claim refuses it, also of
    the caller's own; a look and a notice are all it takes where nobody else is at it, and
    `patience` seconds at most. Raises `Taken`; UserError if the caller has too many claims or too
    many devices; OSError if the claim can't be written.
    """
    if len(devices) > _MOST_DEVICES:
        raise UserError(f"{len(devices)} devices are too many for one run: {_MOST_DEVICES} at most")
    if sum(n.uid == os.geteuid() for n in _read(box)) >= MOST:
        raise UserError(f"you hold {MOST} claims on devices already, and no more count: end some "
                        "of your runs")
    if share:
        return Claims(_post(box, devices, run, os.urandom(16).hex(), _HELD, shared=True))
    taker = _Taker(box, devices, run, time.monotonic() + patience)
    try:
        return taker.take()
    except BaseException:
        taker.withdraw()
        raise


def holders(box: Box) -> dict[str, list[Holder]]:
    """Everybody who holds a device, or is about to take it, by the device's key, longest first.
    Raises OSError."""
    found: dict[str, list[Holder]] = {}
    for notice in _read(box):
        for holder in _holders(notice):
            found.setdefault(holder.key, []).append(holder)
    for several in found.values():
        several.sort(key=lambda h: h.since)
    return found


class _Taker:
    """Carries out the steps of `taking` on files."""

    def __init__(self, box: Box, devices: Mapping[str, str], run: str | None, end: float) -> None:
        self._box, self._devices, self._run, self._end = box, devices, run, end
        self._posted: notices.Posted | None = None
        self._order: taking.Order = ("", os.geteuid())
        self._rivals: list[notices.Notice[_Content]] = []

    def take(self) -> Claims:
        step: taking.Step = "post"
        while step not in ("held", "refused"):
            step = self._do(step)
        if step == "held" and self._posted is not None:
            return Claims(self._posted)
        raise Taken(tuple(h for n in self._rivals for h in _holders(n) if h.key in self._devices))

    def withdraw(self) -> None:
        if self._posted is not None:
            self._posted.close()
            self._posted = None

    def _do(self, step: taking.Step) -> taking.Step:
        """Take a step. Returns the next."""
        if step == "look":
            self._rivals = self._look()
            return taking.after_look(
                self._order, [taking.Rival((n.content.name, n.uid), n.mark == _HELD)
                              for n in self._rivals], self._time())
        if step == "post":
            name = os.urandom(16).hex()
            self._order = (name, os.geteuid())
            self._posted = _post(self._box, self._devices, self._run, name, _TRYING, shared=False)
        elif step == "settle" and self._posted is not None:
            self._posted.mark(_HELD)
        elif step in ("withdraw", "give up"):
            self.withdraw()
        elif step in ("wait", "back off"):
            import random

            time.sleep(random.uniform(0.002, 0.03))
        return taking.after(step)

    def _time(self) -> taking.Time:
        beyond = time.monotonic() - self._end
        return "early" if beyond < 0 else "late" if beyond < _LONGER else "over"

    def _look(self) -> list[notices.Notice[_Content]]:
        """The claims of others on these devices."""
        mine = self._posted.inode if self._posted is not None else None
        return [n for n in _read(self._box) if n.inode != mine
                and any(key in self._devices for key, _ in n.content.devices)]


# --- what is in the file --------------------------------------------------------------------------

@frozen(slots=True)
class _Content:
    name: str
    run: str | None
    pid: int
    since: float
    """Seconds of CLOCK_BOOTTIME, which nobody can set."""
    shared: bool
    devices: tuple[tuple[str, str], ...]


def _post(box: Box, devices: Mapping[str, str], run: str | None, name: str, mark: bytes, *,
          shared: bool) -> notices.Posted:
    about = {"name": name, "run": run, "pid": os.getpid(), "since": said.boottime(),
             "shared": shared, "devices": list(devices.items())}
    return notices.post(box.claims, mark, json.dumps(about).encode())


def _read(box: Box) -> list[notices.Notice[_Content]]:
    return notices.read(box.claims, _parse, MOST)


def _parse(body: bytes) -> _Content | None:
    """What a claim says; None for nonsense."""
    try:
        given = json.loads(body)
        devices = [(said.key(key), said.text(label))
                   for key, label in given["devices"][:_MOST_DEVICES]]
        run = given["run"]
        return _Content(said.name(given["name"]), None if run is None else said.text(run),
                        said.whole(given["pid"], said.MOST_PID), said.seconds(given["since"]),
                        given["shared"] is True, tuple(devices))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _holders(notice: notices.Notice[_Content]) -> Iterator[Holder]:
    content, uid = notice.content, notice.uid
    since = time.time() - (said.boottime() - content.since)
    for key, label in content.devices:
        yield Holder(key, label, uid, users.name(uid), content.run, content.pid, since,
                     content.shared)
