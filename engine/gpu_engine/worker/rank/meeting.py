"""Ranks that wait for each other while one is busy for long: reading its data, writing a large
checkpoint.

A collective gives up after `parallel.timeout`, however healthy the rank is that others wait for.
So where one may be busy, the ranks meet on the store first: each leaves word that it is there, and
looks for the others' word for as long as they show signs of life. A rank's recorder thread gives
one a second, with what the rank is doing, which those that wait show as their own `detail`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from gpu_engine.worker.rank import heartbeat
from gpu_engine.worker.rank.failures import PeerLost
from gpu_engine.worker.rank.store import Store

_LOOK = 0.5
_PARTING = 10.0
_PAUSES = (0.0002, 0.1)
"""Seconds between two questions to the store: at first, and at most."""


class Meetings:
    """One rank's side. All ranks call `meet` and `broadcast` in the same order, from one thread."""

    def __init__(self, rank: int, size: int, store: Store, timeout: float,
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

    def broadcast(self, text: str) -> str:
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
            beat = heartbeat.last(rank, self._store)
            before, since = seen.get(rank, ("", now))
            seen[rank] = (beat, since if beat == before and rank in seen else now)
            if now - seen[rank][1] > self._timeout:
                raise PeerLost(f"rank {rank} has given no sign of life for {self._timeout:g} s "
                               f"(parallel.timeout); it was last "
                               f"{heartbeat.activity_in(beat)}")
        if late:
            self.say(f"waits for {_named(late)}: "
                     f"{heartbeat.activity_in(seen[late[0]][0])}")

    @contextlib.contextmanager
    def _broken(self) -> Iterator[None]:
        """The store lives on rank 0, which may be gone."""
        try:
            yield
        except RuntimeError as err:
            raise PeerLost("the connection to rank 0 broke: it ended or its machine can't be "
                           f"reached ({str(err).partition(chr(10))[0]})") from err


def _here(number: int, rank: int) -> str:
    return f"gpu-panel/met/{number}/{rank}"


def _named(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:4])) + (f" and {len(ranks) - 4} more" if ranks[4:] else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"
