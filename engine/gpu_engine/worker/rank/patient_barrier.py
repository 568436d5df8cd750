"""Lets ranks wait for one that is busy for a long time, reading its data or writing a large
checkpoint.

A collective gives up after `parallel.timeout`, even if the rank that it waits for is healthy. So
where a rank may be busy, all ranks wait on the store first: each sets a key when it arrives, and
waits for the keys of the others as long as their heartbeats go on. A heartbeat also says what its
rank is doing; a rank that waits shows that as its own `detail`.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator

from gpu_engine.common import units
from gpu_engine.worker.rank.failures import PeerLost
from gpu_engine.worker.rank.recorder import Recorder
from gpu_engine.worker.rank.store import Store

INTERVAL = 1.0
"""Seconds between two heartbeats."""
_ACTIVITY = {"init": "getting ready", "data": "reading its data", "forward": "in a step",
             "backward": "in a step", "optimizer": "in a step", "eval": "evaluating",
             "checkpoint": "saving", "done": "ended"}
_LOOK = 0.5
_PARTING = 10.0
_PAUSES = (0.0002, 0.1)
"""Seconds between two readings of the store: at first, and at most."""


class PatientBarrier:
    """A barrier that waits as long as the others live, and a broadcast. All ranks call `wait` and
    `broadcast` in the same order, each from one thread."""

    def __init__(self, rank: int, size: int, store: Store, timeout: float,
                 failure: Callable[[], str | None]) -> None:
        """`timeout`: seconds without a heartbeat after which a rank counts as lost; `failure`
        returns the failure that another rank has announced."""
        self._rank, self._size, self._store = rank, size, store
        self._timeout, self._failure = timeout, failure
        self._count = 0
        self._met: list[int] = []
        """The numbers of the last waits whose keys are still on the store, two at most."""
        self._unread: list[int] = []
        self.report_wait: Callable[[str], None] = lambda text: None
        """Called with what this rank waits for, and with "" when the wait is over."""

    def wait(self) -> None:
        """Wait until every rank has called this. Raises PeerLost."""
        self._count += 1
        with self.peer_lost():
            # This rank has passed the last barrier, so all have come to it, and have passed the one
            # before. A broadcast between them says nothing: rank 0 does not wait there.
            if len(self._met) == 2:
                self._store.delete_key(_here(self._met.pop(0), self._rank))
            self._met.append(self._count)
            self._store.set(_here(self._count, self._rank), "1")
        self.wait_for({r: _here(self._count, r) for r in range(self._size)})

    def broadcast(self, text: str) -> str:
        """Rank 0's text, on every rank, however long rank 0 takes. Raises PeerLost."""
        self._count += 1
        key, read = f"gpu-panel/said/{self._count}", f"gpu-panel/read/{self._count}"
        with self.peer_lost():
            if self._rank == 0:
                self._store.set(key, text)
                self._unread.append(self._count)
                self._forget()
                return text
        self.wait_for({0: key})
        with self.peer_lost():
            text = self._store.get(key).decode()
            self._store.add(read, 1)
        return text

    def leave(self) -> None:
        """Say that this rank no longer needs the store. Rank 0, which holds it, waits until all
        others have said so, for ten seconds at most."""
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
        """Delete the texts that every rank has read from the store."""
        for number in self._unread[:-1]:
            if self._store.add(f"gpu-panel/read/{number}", 0) == self._size - 1:
                self._store.delete_key(f"gpu-panel/said/{number}")
                self._store.delete_key(f"gpu-panel/read/{number}")
                self._unread.remove(number)

    def wait_for(self, keys: dict[int, str]) -> None:
        """Wait until each of these ranks has set its key. Raises PeerLost."""
        began = time.monotonic()
        pause, look_at = _PAUSES[0], began + _LOOK
        seen: dict[int, tuple[str, float]] = {}
        try:
            while True:
                with self.peer_lost():
                    if self._store.check(list(keys.values())):
                        return
                    now = time.monotonic()
                    if now >= look_at:
                        look_at = now + _LOOK
                        self._check(keys, seen, now)
                time.sleep(pause)
                pause = min(pause * 1.5, _PAUSES[1])
        finally:
            if seen:
                self.report_wait("")

    def _check(self, keys: dict[int, str], seen: dict[int, tuple[str, float]], now: float) -> None:
        """Say which ranks this one waits for. Raises PeerLost if one has failed or is silent."""
        word = self._failure()
        if word:
            raise PeerLost(f"{word} (this rank could not go on without it)")
        late = [rank for rank, key in keys.items() if not self._store.check([key])]
        for rank in late:
            beat = _last(rank, self._store)
            before, since = seen.get(rank, ("", now))
            seen[rank] = (beat, since if beat == before and rank in seen else now)
            if now - seen[rank][1] > self._timeout:
                raise PeerLost(f"rank {rank} has shown no sign of life for {self._timeout:g} s "
                               f"(parallel.timeout); it was last {_activity_in(beat)}")
        if late:
            self.report_wait(f"waiting for {_named(late)}: {_activity_in(seen[late[0]][0])}")

    @contextlib.contextmanager
    def peer_lost(self) -> Iterator[None]:
        """Raise PeerLost if a call to the store fails: rank 0 holds it and may be gone."""
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


class Heartbeat:
    """Sends a rank's heartbeats, from a thread beside the one that trains."""

    def __init__(self, rank: int, store: Store) -> None:
        """`store` must be a connection that no other thread uses."""
        self._rank, self._store = rank, store
        self._count = 0

    def __call__(self, activity: str) -> None:
        """Send one heartbeat. `activity` says in words what the rank is doing."""
        self._count += 1
        with contextlib.suppress(RuntimeError):  # rank 0 may be gone
            self._store.set(_beat(self._rank), json.dumps([self._count, activity[:500]]))


def activity(rec: Recorder) -> str:
    """What the rank of `rec` is doing now, in words, for the ranks that wait for it."""
    writing = rec.writing
    if rec.phase == "checkpoint" and writing is not None:
        return f"writing a checkpoint: {units.size(writing.done)} of {units.size(writing.total)}"
    return rec.details() or _ACTIVITY.get(rec.phase, rec.phase)


def _last(rank: int, store: Store) -> str:
    """The last heartbeat of a rank, a text that differs from that of any other; "" if there is
    none. Raises RuntimeError if the store is gone."""
    key = _beat(rank)
    return store.get(key).decode() if store.check([key]) else ""


def _activity_in(heartbeat: str) -> str:
    # Anybody who reaches the port could have written this: treat it as text only.
    try:
        return str(json.loads(heartbeat)[1])[:500]
    except (ValueError, IndexError, TypeError, KeyError):
        return "no heartbeat yet"


def _beat(rank: int) -> str:
    return f"gpu-panel/beat/{rank}"
