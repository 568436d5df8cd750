"""The waiting runs of one user among those of all users of the machine: first in, first out.

Each of our first runs has a place: a file in the shared folder (`devices/leases`), which others see
while our waiter lives. The k-th run in our own order has the k-th place that we have taken, so
moving a run changes which of our runs goes first and nothing for anybody else. The files stay when
the waiter ends, and the next one takes them up: a place is kept over a crash and a reboot.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_engine.common.records import Whole, read_record
from gpu_engine.devices.leases import held, shared
from gpu_engine.queue import order
from gpu_engine.queue.order import Request, Turn, Wants

MOST = 16
"""How many places a user takes: whoever queues a thousand runs leaves room for others between."""
_LOOK = 1.0
"""Seconds between two readings of the places of other users."""
PATIENCE = 60.0
"""Seconds for which another user's run may leave free devices that it waits for, as when its waiter
is stopped. Then it is waited for no longer."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Said:
    """What stands in a place."""

    run: str
    queue: str
    """The folder of its queue, by which the next waiter knows it."""
    keys: tuple[str, ...] = ()
    count: Whole = 0
    free_bytes: Whole | None = None
    cpu: bool = False


class Places:
    """Our places, and those of other users before them. `queue`: the folder of our queue."""

    def __init__(self, queue: Path) -> None:
        self._queue = str(queue)
        self._shared = shared.find()
        self._held: dict[str, held.Mine] = {}
        """Run → its place, in our order."""
        self._taken_up = False
        self._said: Sequence[object] | None = None
        """What our places were to say at the last time."""
        self._others: dict[str, tuple[int, Request]] = {}
        """Name of a place → the uid of its user, and what the run wants; first come first."""
        self._read_at = -_LOOK
        self._turns: dict[str, float] = {}
        """Place of another user → since when it has been their turn, monotonic seconds."""
        self._passed: set[str] = set()
        """Places that we wait for no longer."""

    def hold(self, runs: Sequence[tuple[str, Wants]], keys: Mapping[str, str]) -> None:
        """Have places for these runs, which are in our order, and for no others. `keys`: device →
        the key of its lease."""
        if self._shared is None:
            return
        said = {name: {"run": name, "queue": self._queue, "count": wants.count, "cpu": wants.cpu,
                       "keys": [keys.get(i, i) for i in wants.ids], "free_bytes": wants.free}
                for name, wants in runs[:MOST]}
        before, self._said = self._said, list(said.values())
        if before == self._said:
            return
        for name in self._held.keys() - said:
            self._held.pop(name).close()
        places = sorted(self._held.values(), key=lambda place: place.path)
        try:
            with held.alone(self._shared.lock):
                if not self._taken_up:
                    places, self._taken_up = self._take_back(said), True
                for n, about in enumerate(said.values()):
                    if n == len(places):
                        places.append(held.make(self._shared.line, about))
                    elif places[n].said != about:
                        places[n] = places[n].changed(about)
        except OSError as err:
            log.warning("no place among the users' waiting runs: %s", err)
        self._held = dict(zip(said, places, strict=False))

    def _take_back(self, runs: Container[object]) -> list[held.Mine]:
        """The places that the waiter before us has left, of runs that still wait. Raises OSError.
        """
        assert self._shared is not None
        found = []
        for file in held.read(self._shared.line):
            if file.mine and not file.live and file.said.get("queue") == self._queue:
                if file.said.get("run") in runs:
                    found.append(held.make(self._shared.line, file.said, file.path.name))
                else:
                    file.path.unlink(missing_ok=True)
        return found

    def among(self, ours: Sequence[Request], ids: Mapping[str, str]) -> list[Request]:
        """Our runs, with those of others where they stand before ours. `ids`: key of a lease →
        device."""
        if self._shared is None or not ours:
            return list(ours)
        if time.monotonic() - self._read_at >= _LOOK:
            self._read_others(ids)
        kinds = {request.wants.cpu for request in ours}
        before = [(name, request) for name, (_, request) in self._others.items()
                  if name not in self._passed and request.wants.cpu in kinds]
        out: list[Request] = []
        for request in ours:
            if order.early(request, time.time()) is None:
                place = self._held.get(request.id)
                # Our runs beyond the places that we have are behind everybody.
                while before and (place is None or before[0][0] < place.path.name):
                    out.append(before.pop(0)[1])
            out.append(request)
        return out

    def _read_others(self, ids: Mapping[str, str]) -> None:
        assert self._shared is not None
        self._read_at, self._others = time.monotonic(), {}
        try:
            files = held.read(self._shared.line)
        except OSError as err:
            log.warning("the places of other users can't be read: %s", err)
            return
        for file in files:
            try:
                said = read_record(_Said, file.said)
            except ValueError:  # nonsense
                continue
            ours = file.mine and said.queue == self._queue
            if file.live and not ours and (said.keys or said.count):
                wants = Wants(tuple(ids.get(key, key) for key in said.keys), said.count,
                              free=said.free_bytes, cpu=said.cpu)
                self._others[file.path.name] = (
                    file.uid, Request(file.path.name, wants, owner=file.user))

    def watch(self, turns: Sequence[Turn]) -> None:
        """Wait no longer for whoever lets their turn pass. `turns`: whose turn it is now."""
        now = time.monotonic()
        self._turns = {t.id: self._turns.get(t.id, now) for t in turns}
        for name, since in self._turns.items():
            if now - since > PATIENCE and name in self._others:
                uid = self._others[name][0]
                over = {n for n, (owner, _) in self._others.items() if owner == uid}
                log.warning("%s has not taken its turn for %.0f s: %d places of that user are "
                            "passed over", name, PATIENCE, len(over - self._passed))
                self._passed |= over

    def close(self) -> None:
        """Wait no longer."""
        for place in self._held.values():
            place.close()
        self._held = {}
