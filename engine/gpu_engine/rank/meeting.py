"""Ranks that wait for each other while one is busy for long: reading its data, writing a large
checkpoint.

A collective gives up after `parallel.timeout`, however healthy the rank is that others wait for.
So where one may be busy, the ranks meet on the store first: each leaves word that it is there, and
looks for the others' word for as long as they show signs of life. A rank's recorder thread gives
one a second, with what the rank is doing, which those that wait show as their own `detail`.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from gpu_engine.common import units
from gpu_engine.common.errors import UserError
from gpu_engine.rank.recorder import Recorder

if TYPE_CHECKING:
    from gpu_engine.rank.process_group import Group

BEAT = 1.0
"""Seconds between two signs of life."""
_LOOK = 0.5
_DOING = {"init": "getting ready", "data": "reading its data", "forward": "in a step",
          "backward": "in a step", "optimizer": "in a step", "eval": "evaluating",
          "checkpoint": "saving", "done": "ended"}
_PARTING = 10.0
_PAUSES = (0.0002, 0.1)
"""Seconds between two questions to the store: at first, and at most."""


class PeerLost(UserError):
    """Another rank failed or went away; this one can't go on alone."""

    title = "Another rank failed"


class Meetings:
    """One rank's side. All ranks call `meet` and `hear` in the same order, from one thread."""

    def __init__(self, rank: int, size: int, store: dist.Store, timeout: float,
                 failure: Callable[[], str | None]) -> None:
        """`timeout`: seconds without a sign of life after which a rank is given up; `failure`:
        what another rank announced."""
        self._rank, self._size, self._store = rank, size, store
        self._timeout, self._failure = timeout, failure
        self._count = 0
        self._unread: list[int] = []
        self.say: Callable[[str], None] = lambda text: None
        """Told what this rank waits for, and "" when it does no more."""

    def meet(self) -> None:
        """Wait until every rank is here. Raises PeerLost."""
        self._count += 1
        with self._broken():
            if self._count > 2:  # whoever is at the one before has left that one behind
                self._store.delete_key(_here(self._count - 2, self._rank))
            self._store.set(_here(self._count, self._rank), "1")
        self._wait({r: _here(self._count, r) for r in range(self._size)})

    def hear(self, text: str) -> str:
        """Rank 0's text, on every rank, whenever rank 0 has it. Raises PeerLost."""
        self._count += 1
        key, read = f"gpu-panel/said/{self._count}", f"gpu-panel/read/{self._count}"
        with self._broken():
            if self._rank == 0:
                self._store.set(key, text)
                self._unread.append(self._count)
                self._forget()
                return text
        self._wait({0: key})
        with self._broken():
            text = self._store.get(key).decode()
            self._store.add(read, 1)
        return text

    def part(self) -> None:
        """The last word: rank 0, which holds the store, stays until the others need it no more,
        or are gone."""
        if self._size == 1:
            return
        with contextlib.suppress(RuntimeError):
            if self._rank:
                self._store.set(f"gpu-panel/left/{self._rank}", "1")
                return
            left = [f"gpu-panel/left/{rank}" for rank in range(1, self._size)]
            deadline = time.monotonic() + _PARTING
            while not self._store.check(left) and time.monotonic() < deadline:
                time.sleep(0.005)

    def _forget(self) -> None:
        """Take what everybody has read off the store."""
        for number in self._unread[:-1]:
            if self._store.add(f"gpu-panel/read/{number}", 0) == self._size - 1:
                self._store.delete_key(f"gpu-panel/said/{number}")
                self._store.delete_key(f"gpu-panel/read/{number}")
                self._unread.remove(number)

    def _wait(self, keys: dict[int, str]) -> None:
        began = time.monotonic()
        pause, look_at = _PAUSES[0], began + _LOOK
        seen: dict[int, tuple[str, float]] = {}
        try:
            while True:
                with self._broken():
                    if self._store.check(list(keys.values())):
                        return
                    now = time.monotonic()
                    if now >= look_at:
                        look_at = now + _LOOK
                        self._look(keys, seen, now)
                time.sleep(pause)
                pause = min(pause * 1.5, _PAUSES[1])
        finally:
            if seen:
                self.say("")

    def _look(self, keys: dict[int, str], seen: dict[int, tuple[str, float]], now: float) -> None:
        """Whom this rank waits for, and whether they live."""
        word = self._failure()
        if word:
            raise PeerLost(f"{word} (this rank could not go on without it)")
        late = [rank for rank, key in keys.items() if not self._store.check([key])]
        for rank in late:
            key = _beat(rank)
            beat = self._store.get(key).decode() if self._store.check([key]) else ""
            before, since = seen.get(rank, ("", now))
            seen[rank] = (beat, since if beat == before and rank in seen else now)
            if now - seen[rank][1] > self._timeout:
                raise PeerLost(f"rank {rank} has given no sign of life for {self._timeout:g} s "
                               f"(parallel.timeout); it was last {_words(beat)}")
        if late:
            self.say(f"waits for {_named(late)}: {_words(seen[late[0]][0])}")

    @contextlib.contextmanager
    def _broken(self) -> Any:
        """The store lives on rank 0, which may be gone."""
        try:
            yield
        except RuntimeError as err:
            raise PeerLost("the connection to rank 0 broke: it ended or its machine can't be "
                           f"reached ({str(err).partition(chr(10))[0]})") from err


class Pulse:
    """A rank's signs of life, given from another thread over a connection of its own."""

    def __init__(self, rank: int, store: dist.Store) -> None:
        self._rank, self._store = rank, store
        self._count = 0

    def __call__(self, doing: str) -> None:
        self._count += 1
        with contextlib.suppress(RuntimeError):  # rank 0 may have gone
            self._store.set(_beat(self._rank), json.dumps([self._count, doing[:500]]))


def doing(rec: Recorder) -> str:
    """What the rank of `rec` is doing, in words, for those that wait for it."""
    writing = rec.writing
    if rec.phase == "checkpoint" and writing is not None:
        return f"writing a checkpoint: {units.size(writing.done)} of {units.size(writing.total)}"
    return rec.details() or _DOING.get(rec.phase, rec.phase)


class Patient:
    """Training data whose ranks meet before an epoch's first collective: starting workers, reading
    an index, or reading again what a resumed stream had behind it takes one longer than another."""

    def __init__(self, group: Group) -> None:
        self.data: Any = None
        self._group, self._met = group, False

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """The epoch's batches."""
        self._met = False
        batches = iter(self.data.epoch(epoch, start))
        first = next(batches, None)
        self._meet()
        if first is not None:
            yield first
            yield from batches

    def start_agree(self, value: int) -> Callable[[], int]:
        """The group's, after all ranks have come that far."""
        self._meet()
        return self._group.start_agree(value)

    def _meet(self) -> None:
        if not self._met:
            self._met = True
            self._group.meet()


def _here(number: int, rank: int) -> str:
    return f"gpu-panel/met/{number}/{rank}"


def _beat(rank: int) -> str:
    return f"gpu-panel/beat/{rank}"


def _words(beat: str) -> str:
    # It comes over the network from whoever reaches the port: text, nothing more.
    try:
        return str(json.loads(beat)[1])[:500]
    except (ValueError, IndexError, TypeError, KeyError):
        return "not heard of"


def _named(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:4])) + (f" and {len(ranks) - 4} more" if ranks[4:] else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"
