"""The waiting runs of one user in the line that all users of the machine share (`box/line.py`).

The first of our runs hold places there. The k-th run in our own order has the k-th place that we
have taken, so moving a run changes which of our runs goes first and nothing for anybody else.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpu_engine.box import folder, line
from gpu_engine.box.line import Other, Place
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import read_json, write_json
from gpu_engine.queue.order import Request, Turn, Wants

_LOOK = 1.0
"""Seconds between two looks at the places of other users."""
PATIENCE = 60.0
"""Seconds for which another user's run may leave free devices that it waits for. Then it is waited
for no longer: nobody can hold up others by a place alone."""

log = logging.getLogger(__name__)


class Places:
    """Our places, kept over a restart of the waiter in `file`."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._box = folder.find()
        self._held: dict[str, Place] = {}
        """Run → its place, in the order in which the places were taken."""
        self._saved = read_json(file) if self._box is not None else None
        self._looked: list[Other] = []
        self._looked_at = -_LOOK
        self._turns: dict[str, float] = {}
        """Place of another user → since when it has been their turn, monotonic seconds."""
        self._written: object = None

    def hold(self, runs: Sequence[tuple[str, Wants]], keys: Mapping[str, str]) -> None:
        """Have places for these runs, which are in our order, and for no others. `keys`: device →
        the key of its lease."""
        if self._box is None:
            return
        runs = [(name, wants) for name, wants in runs if not wants.cpu][:line.MOST]
        names = [name for name, _ in runs]
        for name in [n for n in self._held if n not in names]:
            self._held.pop(name).close()
        places = list(self._held.values())
        try:
            while len(places) < len(runs):
                places.append(self._take(names[len(places)], _told(runs[len(places)][1], keys)))
            for place, (_, wants) in zip(places, runs, strict=True):
                if place.wants != (told := _told(wants, keys)):
                    place.change(told)
        except (OSError, UserError) as err:
            log.warning("no place in the line that users share: %s", err)
        self._held = dict(zip(names, places, strict=False))
        self._write()

    def among(self, ours: Sequence[Request], ids: Mapping[str, str]) -> list[Request]:
        """Our runs, with those of other users where they stand before ours. `ids`: key of a lease →
        device."""
        if self._box is None or not ours:
            return list(ours)
        now = time.monotonic()
        if now - self._looked_at >= _LOOK:
            self._looked_at = now
            try:
                self._looked = line.look(self._box)
            except OSError as err:
                log.warning("the line that users share can't be read: %s", err)
                self._looked = []
        if not self._looked:
            return list(ours)
        out: list[Request] = []
        known: set[str] = set()
        for request in ours:
            place = self._held.get(request.id)
            # Our runs beyond the places that count are behind everybody.
            before = place.ahead(self._looked) if place is not None else self._looked
            for other in before:
                # One that wants nothing holds up nobody.
                if other.id not in known and (other.wants.keys or other.wants.count):
                    known.add(other.id)
                    out.append(Request(other.id, _heard(other.wants, ids), owner=other.user))
            out.append(request)
        return out

    def watch(self, turns: Sequence[Turn]) -> None:
        """Wait no longer for whoever lets their turn pass. `turns`: whose turn it is now."""
        now = time.monotonic()
        self._turns = {t.id: self._turns.get(t.id, now) for t in turns}
        for name, since in list(self._turns.items()):
            if now - since > PATIENCE:
                owners = {o.uid for o in self._looked if o.id == name}
                over = [o.id for o in self._looked if o.uid in owners]
                log.warning("%s has not taken its turn for %.0f s: that user's %d places are "
                            "passed over", name, PATIENCE, len(over))
                for place in self._held.values():
                    for other in over:
                        place.pass_over(other)
                self._looked = [o for o in self._looked if o.uid not in owners]
                del self._turns[name]
                self._write()

    def close(self) -> None:
        """Leave the line."""
        for place in self._held.values():
            place.close()
        self._held = {}
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)

    def _take(self, run: str, wants: line.Wants) -> Place:
        assert self._box is not None
        saved = self._saved
        if isinstance(saved, list) and saved:  # of the waiter before, in its order
            return line.rejoin(self._box, saved.pop(0), wants, run)
        return line.take_place(self._box, wants, run)

    def _write(self) -> None:
        state = [place.to_dict() for place in self._held.values()]
        if state == self._written:
            return
        self._written = state
        try:
            write_json(self._file, state)
        except OSError as err:
            log.warning("%s: %s", self._file, err)


def _told(wants: Wants, keys: Mapping[str, str]) -> line.Wants:
    return line.Wants(None if wants.ids else wants.count,
                      tuple(keys.get(i, i) for i in wants.ids), wants.free)


def _heard(wants: line.Wants, ids: Mapping[str, str]) -> Wants:
    return Wants(tuple(ids.get(key, key) for key in wants.keys), wants.count or 0,
                 free=wants.free_bytes)
