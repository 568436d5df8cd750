"""The line of waiting runs: which runs of other users wait before one's own.

A place is a notice (`notices`) of the process that waits. Whoever takes a place looks first who
else is in the line, and posts the place then: those seen are before it, whoever comes later is
after it, and who is before whom is kept by the one who waits, in his own memory and file. So no
clock is read and nothing is written that another could forge. Files made early are no help: a place
counts only while a process of its owner lives that holds it.

Two who take a place at the same moment may both see nobody before them. Then neither waits for the
other, and the claims decide who gets a device first. The other way round (first posted, then
looked) both could wait for each other for ever.

A place keeps its `id` when it is posted again (`rejoin`, `Place.change`): by the id it is known as
the same. A place that is away does not keep anybody waiting. One that is back within `AWAY` seconds
is where it was, so that whoever waits can be started anew; later it has lost its place with those
who looked meanwhile.

An order between users who don't trust each other is worth what they do about one who doesn't keep
to it. Who holds a place and takes nothing for a while, although devices are free for him, is left
out by `Place.pass_over`. That is for good, as the same place can't be taken twice, and another
place of his is behind.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gpu_engine.box import notices, said, users
from gpu_engine.box.folder import Box
from gpu_engine.common import procs
from gpu_engine.common.errors import UserError

MOST = 16
"""How many places of one user count."""
AWAY = 60.0
"""Seconds for which a place that is away is remembered."""
_MOST_DEVICES = 128
_MOST_BYTES = 1 << 50
_MARK = b"p"


@dataclass(frozen=True, slots=True)
class Wants:
    """What a run waits for."""

    count: int | None = None
    """Any so many devices; None if it waits for `keys`."""
    keys: tuple[str, ...] = ()
    """Keys of the devices (`devices.leases.key`)."""
    free_bytes: int | None = None
    """Bytes that are free on each."""


@dataclass(frozen=True, slots=True)
class Other:
    """A place in the line, as others see it. Texts are harmless to show."""

    id: str
    """Stays the same as long as the place is kept: the owner's uid and a random name."""
    uid: int
    user: str
    wants: Wants
    run: str | None
    said_pid: int
    """What its owner says. See `pid`."""
    seen_since: float
    """When the asker saw it first, in seconds of CLOCK_BOOTTIME (`said.boottime`)."""

    @property
    def pid(self) -> int | None:
        """The process that holds it, if it is seen from here now and is the user's."""
        return self.said_pid if users.own_process(self.said_pid, self.uid) else None


class Place:
    """A place of this process, until `close` or until the process ends."""

    def __init__(self, box: Box, wants: Wants, run: str | None, name: str,
                 before: Mapping[str, float]) -> None:
        self.wants = wants
        self.run = run
        self._box, self._name = box, name
        self._before = {id: _Before(since, said.boottime()) for id, since in before.items()}
        self._posted = _post(box, wants, run, name)

    @property
    def id(self) -> str:
        """As others see it: `Other.id`."""
        return f"{os.geteuid()}:{self._name}"

    def ahead(self, looked: Iterable[Other] | None = None) -> list[Other]:
        """The places of other users that are before this one and are there now, in the order in
        which they were first seen. `looked`: what `look` has just found, for who has several
        places. Raises OSError."""
        now = said.boottime()
        there = {other.id: other for other in (look(self._box) if looked is None else looked)}
        for id, before in list(self._before.items()):
            if id in there:
                before.last = now
            elif now - before.last > AWAY:
                del self._before[id]
        found = [replace(there[id], seen_since=b.first) for id, b in self._before.items()
                 if id in there]
        return sorted(found, key=lambda other: (other.seen_since, other.id))

    def pass_over(self, id: str) -> None:
        """No longer wait behind this place of another."""
        self._before.pop(id, None)

    def change(self, wants: Wants) -> None:
        """Wait for something else, at the same place. Raises OSError; it then waits for what it
        did."""
        posted = _post(self._box, wants, self.run, self._name)
        self._posted.close()
        self._posted, self.wants = posted, wants

    def close(self) -> None:
        """Leave the line."""
        self._posted.close()

    def to_dict(self) -> dict[str, object]:
        """What `rejoin` needs, for a file of the user's own."""
        return {"boot": procs.boot_id(), "uid": os.geteuid(), "name": self._name,
                "before": {id: before.first for id, before in self._before.items()}}

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(slots=True)
class _Before:
    """A place that is before another; seconds of CLOCK_BOOTTIME."""

    first: float
    last: float
    """When it was there last."""


def take_place(box: Box, wants: Wants, run: str | None = None) -> Place:
    """Take a place behind all that are in the line now. Raises UserError if the user has too many,
    OSError if it can't be written."""
    there = _read(box)
    _check_count(there)
    now = said.boottime()
    before = {_id(n): now for n in there if n.uid != os.geteuid()}
    return Place(box, wants, run, os.urandom(16).hex(), before)


def rejoin(box: Box, saved: object, wants: Wants, run: str | None = None) -> Place:
    """Take the place again that `Place.to_dict` has saved, after the process that held it has
    ended. If `saved` is of another boot, or damaged, a new place. Raises as `take_place`."""
    try:
        if not isinstance(saved, dict) or saved["boot"] != procs.boot_id() \
                or saved["uid"] != os.geteuid():
            return take_place(box, wants, run)
        name = said.name(saved["name"])
        before = {said.key(id): said.seconds(since) for id, since in saved["before"].items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        return take_place(box, wants, run)
    _check_count(_read(box))
    return Place(box, wants, run, name, before)


def look(box: Box) -> list[Other]:
    """Everybody's places but the caller's own, each once, by id. Raises OSError."""
    now = said.boottime()
    found = {_id(n): n for n in _read(box) if n.uid != os.geteuid()}
    return [_other(id, notice, now) for id, notice in sorted(found.items())]


def _check_count(there: list[notices.Notice[_Content]]) -> None:
    if len({_id(n) for n in there if n.uid == os.geteuid()}) >= MOST:
        raise UserError(f"you have {MOST} places in the line of this machine already, and no more "
                        "count")


# --- what is in the file --------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class _Content:
    name: str
    run: str | None
    pid: int
    wants: Wants


def _post(box: Box, wants: Wants, run: str | None, name: str) -> notices.Posted:
    about = {"name": name, "run": run, "pid": os.getpid(), "count": wants.count,
             "keys": wants.keys, "free_bytes": wants.free_bytes}
    return notices.post(box.line, _MARK, json.dumps(about).encode())


def _read(box: Box) -> list[notices.Notice[_Content]]:
    return notices.read(box.line, _parse, MOST)


def _parse(body: bytes) -> _Content | None:
    """What a place says; None for nonsense."""
    try:
        given = json.loads(body)
        count, free, run = given["count"], given["free_bytes"], given["run"]
        wants = Wants(None if count is None else said.whole(count, _MOST_DEVICES),
                      tuple(said.key(key) for key in given["keys"][:_MOST_DEVICES]),
                      None if free is None else said.whole(free, _MOST_BYTES))
        return _Content(said.name(given["name"]), None if run is None else said.text(run),
                        said.whole(given["pid"], said.MOST_PID), wants)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _id(notice: notices.Notice[_Content]) -> str:
    return f"{notice.uid}:{notice.content.name}"


def _other(id: str, notice: notices.Notice[_Content], now: float) -> Other:
    content, uid = notice.content, notice.uid
    return Other(id, uid, users.name(uid), content.wants, content.run, content.pid, now)
