"""What the ranks tell each other on the store, beside their collectives: who waits for whom, which
one failed first, and the step after which all end."""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch.distributed as dist

from gpu_engine.common import procs, units
from gpu_engine.common.errors import UserError, own_fault
from gpu_engine.events import schema
from gpu_engine.worker.rank.recorder import Recorder

if TYPE_CHECKING:
    from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]
else:
    Store = Any

INTERVAL = 1.0
"""Seconds between two heartbeats."""
_PEER_GRACE = 10.0
"""Seconds that a rank may stay in a collective after another rank has announced its failure."""
_ACTIVITY = {"init": "getting ready", "data": "reading its data", "forward": "in a step",
             "backward": "in a step", "optimizer": "in a step", "eval": "evaluating",
             "checkpoint": "saving", "done": "ended"}
_LOOK = 0.5
_PARTING = 10.0
_PAUSES = (0.0002, 0.1)
"""Seconds between two readings of the store: at first, and at most."""


_LINGER = 3.0
_PATIENCE = 3.0
"""Seconds that a failing rank waits for the store's answer: the link to it may be cut."""
_ASKED, _FAILED = "gpu-panel/end/asked", "gpu-panel/failed"


class PeerLost(UserError):
    """Another rank failed or is gone, and this one can't go on without it."""

    title = "Another rank failed"


class Reason(NamedTuple):
    """Why a rank wants all ranks to end."""

    stop: bool = False
    """It was asked to stop."""
    step: int | None = None
    """The first step whose loss was not a finite number."""
    error: str = ""
    """What is wrong with the training, for a person."""


class End(NamedTuple):
    """Why all ranks end now: the reasons of all of them together."""

    stop: bool
    first: tuple[int, int] | None
    """(step, rank) of the first loss that was not a finite number; of several at the same step, the
    lowest rank's. None if all are finite."""
    error: str
    """What is wrong with the training, as the lowest rank has said it; "" if nothing is."""


class Peers:
    """One rank's part. `tick` and `look` are for the thread beside the training, with a connection
    to the store that no other thread uses; everything else is for the thread that trains."""

    def __init__(self, rank: int, size: int, store: Store, timeout: float) -> None:
        """`timeout`: seconds without a heartbeat after which a rank counts as lost."""
        self._rank, self._size, self._store, self._timeout = rank, size, store, timeout
        self._count = 0
        self._said: list[str] = []
        """Keys of this rank's that others may still look for."""
        self._heard: str | None = None
        """The failure that another rank has announced."""
        self._beat_due = 0.0
        self._failed_since: float | None = None
        self.report_wait: Callable[[str], None] = lambda text: None
        """Called with what this rank waits for, and with "" when the wait is over."""
        self.bound: float = math.inf
        """The number of steps after which the training thread must call `reached`."""
        self._steps: Callable[[], int] | None = None
        self._reason: Callable[[], Reason | None] = lambda: None
        self._promise = threading.Lock()
        self._promised = False

    # --- waiting for each other, however long one is busy ----------------------------------------
    #
    # All ranks call these in the same order. Each call has a number, under which a rank leaves what
    # it has to say.

    def wait(self) -> None:
        """Wait until every rank has called this. Raises PeerLost."""
        self._meet(b"", self._size)

    def broadcast(self, text: str) -> str:
        """Rank 0's text, on every rank. Raises PeerLost."""
        return self._meet(None if self._rank else text.encode(), 1)[0].decode()

    def gather(self, data: bytes) -> list[bytes]:
        """Every rank's bytes, in the order of ranks, on rank 0; [] elsewhere. Raises PeerLost."""
        return self._meet(data, 0 if self._rank else self._size, taken=True)

    def _meet(self, data: bytes | None, others: int, *, taken: bool = False) -> list[bytes]:
        """Say `data`, if there is any, and return what the first so many ranks say. `taken`: nobody
        but rank 0 looks for it."""
        self._count += 1
        keys = [f"gpu-panel/met/{self._count}/{rank}" for rank in range(self._size)]
        with self._peer_lost():
            if data is not None:  # no value on the store is empty
                self._store.set(keys[self._rank], b"=" + data)  # pyright: ignore[reportArgumentType]
                self._said += [] if taken else [keys[self._rank]]
        if not others:
            return []
        self._wait_for(dict(enumerate(keys[:others])))
        with self._peer_lost():
            said = self._store.multi_get(keys[:others])
            if others == self._size:
                # All have come to this call, and so have what they looked for in those before.
                mine = [] if taken else [self._said.pop()]
                for key in self._said + (keys if taken else []):
                    self._store.delete_key(key)
                self._said = mine
        return [text[1:] for text in said]

    def leave(self) -> None:
        """Say that this rank no longer needs the store. Rank 0, which holds it, waits until all
        others have said so, for ten seconds at most."""
        with contextlib.suppress(RuntimeError):
            if self._rank:
                self._store.set(f"gpu-panel/left/{self._rank}", "1")
                return
            self._linger("left", _PARTING)

    def _linger(self, what: str, seconds: float) -> None:
        """Wait for a word of all others, but not for long."""
        others = [f"gpu-panel/{what}/{rank}" for rank in range(1, self._size)]
        deadline = time.monotonic() + seconds
        while others and not self._store.check(others) and time.monotonic() < deadline:
            time.sleep(0.005)

    def _wait_for(self, keys: dict[int, str]) -> None:
        """Wait until each of these ranks has set its key. Raises PeerLost if one has failed, has
        ended, or shows no sign of life."""
        pause, look_at = _PAUSES[0], time.monotonic() + _LOOK
        seen: dict[int, tuple[str, float]] = {}
        """The last heartbeat of each rank that is late, and when it was new."""
        try:
            while True:
                with self._peer_lost():
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
        if word := self.failure_of_others():
            raise PeerLost(f"{word} (this rank could not go on without it)")
        late = [rank for rank, key in keys.items() if not self._store.check([key])]
        for rank in late:
            beat = self._read(f"gpu-panel/beat/{rank}")
            before, since = seen.get(rank, ("", now))
            seen[rank] = (beat, since if beat == before and rank in seen else now)
            if _is_gone(self._read(f"gpu-panel/here/{rank}")):
                raise PeerLost(f"the process of rank {rank} has ended without a word")
            if now - seen[rank][1] > self._timeout:
                raise PeerLost(f"rank {rank} has shown no sign of life for {self._timeout:g} s "
                               f"(parallel.timeout); it was last {_activity_in(beat)}")
        if late:
            self.report_wait(f"{schema.WAITING}{named(late)}: {_activity_in(seen[late[0]][0])}")

    def _read(self, key: str) -> str:
        return self._store.get(key).decode() if self._store.check([key]) else ""

    @contextlib.contextmanager
    def _peer_lost(self) -> Iterator[None]:
        """Raise PeerLost if a call to the store fails: rank 0 holds it and may be gone."""
        try:
            yield
        except RuntimeError as err:
            raise PeerLost("the connection to rank 0 broke: it ended or its machine can't be "
                           f"reached ({str(err).partition(chr(10))[0]})") from err

    # --- the step after which all ranks end, when one of them has a reason to end before ----------
    #
    # Asking the others costs training nothing, as the thread beside it does that on the store:
    #
    # 1. A rank that has a reason says on the store that the end was asked for.
    # 2. Each rank sees that within a tick of its recorder, and promises there not to go beyond the
    #    step that it is in. Its training thread waits after that step.
    # 3. The latest step that a rank has promised is the last one. Ranks that wait at an earlier
    #    step go on to it: at least one rank may be in it already, and waits in its collectives for
    #    the others.

    def begin(self, steps: Callable[[], int], reason: Callable[[], Reason | None]) -> None:
        """Training begins now. `steps`: how many the training thread has made, which it counts
        before it compares them with `bound`; `reason`: this rank's, None if it has none. Both are
        called in another thread, too."""
        self._reason, self._steps = reason, steps

    def ask(self) -> None:
        """Ask for the end, as this rank has a reason. Called between two steps. Raises PeerLost."""
        if self._steps is not None and not self._promised:
            with self._peer_lost():
                self._promise_step(self._store, self._reason(), self._steps)

    def reached(self) -> End | None:
        """Called between two steps from `bound` on. Waits until all ranks have promised a step, and
        returns why they end if this was the last step; else None. Raises PeerLost."""
        keys = {r: f"gpu-panel/end/{r}" for r in range(self._size)}
        self._wait_for(keys)
        with self._peer_lost():
            said = [_read(text, rank) for rank, text in
                    enumerate(self._store.multi_get(list(keys.values())))]
        self.bound = max(step for step, _ in said)
        if self._steps is None or self._steps() < self.bound:
            return None
        reasons = [reason for _, reason in said]
        bad = [(reason.step, rank) for rank, reason in enumerate(reasons)
               if reason.step is not None]
        return End(any(reason.stop for reason in reasons), min(bad, default=None),
                   next((reason.error for reason in reasons if reason.error), ""))

    def look(self, store: Store) -> None:
        """Look whether this rank or another has a reason to end."""
        steps, reason = self._steps, self._reason()
        if self._promised or steps is None:
            return
        with contextlib.suppress(RuntimeError):  # rank 0 may be gone
            if reason is not None or store.check([_ASKED]):
                self._promise_step(store, reason, lambda: self._step_under_way(steps))

    def _promise_step(self, store: Store, reason: Reason | None, bound: Callable[[], int]) -> None:
        """Promise a step, once, and ask for the end if this rank has a reason."""
        with self._promise:
            if self._promised:
                return
            if reason is not None:
                store.set(_ASKED, "1")
            self.bound = step = bound()
            store.set(f"gpu-panel/end/{self._rank}", json.dumps([step, reason or Reason()]))
            self._promised = True

    def _step_under_way(self, steps: Callable[[], int]) -> int:
        """The step that the training thread is in, after which it will see that `bound` is set."""
        done = steps()
        while True:
            # `bound` is set before the steps are read once more: if the thread has not made that
            # step by now, it will see the bound when it has.
            self.bound = step = done + 1
            done = steps()
            if done < step:
                return step

    # --- which rank failed first ------------------------------------------------------------------

    def announce(self, message: str) -> None:
        """Put this rank's failure on the store, for ranks that would otherwise only notice that it
        is gone. Rank 0 holds the store, so it stays until the others have read it, for a few
        seconds at most."""
        text = json.dumps({"rank": self._rank, "message": message[:2000]})

        def announce_once() -> None:
            with contextlib.suppress(Exception):
                # The first announcement is kept: later failures often only follow from it.
                self._store.compare_set(_FAILED, "", text)
                self._store.set(f"gpu-panel/saw/{self._rank}", "1")

        _within(_PATIENCE, announce_once)
        with contextlib.suppress(Exception):
            if self._rank == 0:
                if dist.get_backend() == "gloo":
                    dist.destroy_process_group()  # wakes ranks that wait for this one
                self._linger("saw", _LINGER)

    def failure_of_others(self, store: Store | None = None) -> str | None:
        """The failure that another rank has announced, as "rank 1: …"; None if there is none or
        the store can't be reached. Another thread gives a `store` that is its own connection."""
        store = store or self._store
        with contextlib.suppress(Exception):  # the store lives on rank 0, which may be gone
            if self._heard is None and store.check([_FAILED]):
                word = json.loads(store.get(_FAILED))
                # Anybody who reaches the port could have written this: treat it as data only.
                if word["rank"] != self._rank:
                    self._heard = f"rank {int(word['rank'])}: {str(word['message'])[:2000]}"
                    store.set(f"gpu-panel/saw/{self._rank}", "1")
        return self._heard

    def blame(self, err: BaseException) -> BaseException:
        """`err` itself, or PeerLost if `err` only follows from the failure of another rank."""
        if not _is_connection(err):
            return err

        def announced() -> str | None:
            for _ in range(10):
                if word := self.failure_of_others():
                    return word
                time.sleep(0.1)
            return None

        if word := _within(_PATIENCE, announced):
            return PeerLost(f"{word} (this rank could not go on without it)")
        return PeerLost("the connection to another rank broke: it ended or its machine can't be "
                        f"reached ({first_line(err)})")

    # --- the thread beside the training -----------------------------------------------------------

    def tick(self, rec: Recorder, store: Store) -> None:
        """Called several times a second. Looks whether the ranks are to end. Once a second, sends
        this rank's heartbeat and checks whether another rank has announced its failure. If one has,
        and this rank does not end by itself, it ends the process: a collective of NCCL may never
        return when a rank is gone."""
        now = time.monotonic()
        if rec.phase == "done":
            return
        self.look(store)
        if now < self._beat_due:
            return
        self._beat_due = now + INTERVAL
        beat(store, self._rank, _activity(rec))
        word = self.failure_of_others(store)
        if word is None or rec.writing is not None:  # a checkpoint is finished first
            return
        self._failed_since = self._failed_since or now
        if now - self._failed_since > _PEER_GRACE:
            rec.write(schema.Error("PeerLost", f"{word} (this rank waited for it)", "", rec.phase,
                                   rec.step_now))
            rec.leave("failed")


def named(ranks: list[int]) -> str:
    """The ranks as "rank 1" or "ranks 1, 3"."""
    shown = ", ".join(map(str, ranks[:4])) + (f" and {len(ranks) - 4} more" if ranks[4:] else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


def beat(store: Store, rank: int, activity: str) -> None:
    """Send one heartbeat, which says in words what the rank is doing. `store` must be a connection
    that no other thread uses."""
    with contextlib.suppress(RuntimeError):  # rank 0 may be gone
        store.set(f"gpu-panel/beat/{rank}", json.dumps([time.monotonic(), activity[:500]]))


def come(store: Store, rank: int) -> None:
    """Say that this process has come as a rank."""
    pid = os.getpid()
    store.set(f"gpu-panel/here/{rank}", json.dumps([_machine(), pid, procs.start_ticks(pid)]))


def _machine() -> str:
    """Names where a pid holds: this machine since its start, or a container of it."""
    return f"{procs.boot_id()} {Path('/proc/self/ns/pid').readlink()}"


def _is_gone(process: str) -> bool:
    """Whether a rank's process was on this machine, and is no more. A rank that is killed says
    nothing, and between two steps no collective fails for it."""
    try:
        machine, pid, ticks = json.loads(process)
        return machine == _machine() and not procs.alive(int(pid), int(ticks))
    except (ValueError, TypeError):
        return False


def _activity(rec: Recorder) -> str:
    """What the rank of `rec` is doing now, in words, for the ranks that wait for it."""
    writing = rec.writing
    if rec.phase == "checkpoint" and writing is not None:
        return f"writing a checkpoint: {units.size(writing.done)} of {units.size(writing.total)}"
    return rec.details() or _ACTIVITY.get(rec.phase, rec.phase)


def _activity_in(heartbeat: str) -> str:
    # Anybody who reaches the port could have written this: treat it as text only.
    try:
        return str(json.loads(heartbeat)[1])[:500]
    except (ValueError, IndexError, TypeError, KeyError):
        return "no heartbeat yet"


def _read(text: bytes, rank: int) -> tuple[int, Reason]:
    # Anybody who reaches the port could have written this: treat it as data only.
    try:
        bound, (stop, step, error) = json.loads(text)
        return int(bound), Reason(bool(stop), None if step is None else int(step), str(error))
    except (ValueError, TypeError) as err:
        raise PeerLost(f"rank {rank} sent something that is not a step to end at: "
                       f"{text[:200]!r}") from err


def _within(seconds: float, work: Callable[[], str | None]) -> str | None:
    """What `work` returns; None if that takes longer than `seconds`, as it may with a store that
    can't be reached."""
    answers: list[str | None] = []
    thread = threading.Thread(target=lambda: answers.append(work()), daemon=True)
    thread.start()
    thread.join(seconds)
    return answers[0] if answers else None


def first_line(err: BaseException) -> str:
    """The first line of an error's message, without PyTorch's guess at the cause; the error's type
    if it has no message."""
    text = str(err).strip()
    return text.splitlines()[0].partition(". This is typically")[0] if text else type(err).__name__


def _is_connection(err: BaseException) -> bool:
    """Whether gloo, NCCL or the store raised this because another rank is gone. The decision goes
    by where it was raised: a task's own errors may mention NCCL or a timeout too."""
    if isinstance(err, dist.DistError):
        return not own_fault(str(err))
    # The path of gloo's source file:
    return isinstance(err, RuntimeError) and "gloo/" in str(err).lower()
