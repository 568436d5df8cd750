"""The step after which all ranks end, when one of them has a reason to end before the others do.

Asking the others costs training nothing, as the thread beside it does that on the store:

1. A rank that has a reason says on the store that the end was asked for.
2. Each rank sees that within a tick of its recorder, and promises there not to go beyond the step
   that it is in. Its training thread waits after that step.
3. The latest step that a rank has promised is the last one. Ranks that wait at an earlier step go
   on to it: at least one rank may be in it already, and waits in its collectives for the others.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

from gpu_engine.worker.rank.failures import PeerLost
from gpu_engine.worker.rank.patient_barrier import PatientBarrier
from gpu_engine.worker.rank.store import Store

_ASKED = "gpu-panel/end/asked"


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


class LastStep:
    """One rank's part. The training thread calls `begin`, `ask` and `reached`, and compares its
    steps with `bound` after each; the thread beside it calls what `watcher` returns."""

    def __init__(self, rank: int, size: int, store: Store, barrier: PatientBarrier) -> None:
        self.bound: float = math.inf
        """The number of steps after which the training thread must call `reached`."""
        self._rank, self._store, self._barrier = rank, store, barrier
        self._keys = {r: f"gpu-panel/end/{r}" for r in range(size)}
        self._steps: Callable[[], int] | None = None
        self._reason: Callable[[], Reason | None] = lambda: None
        self._promise = threading.Lock()
        self._promised = False

    def begin(self, steps: Callable[[], int], reason: Callable[[], Reason | None]) -> None:
        """Training begins now. `steps`: how many the training thread has made, which it counts
        before it compares them with `bound`; `reason`: this rank's, None if it has none. Both are
        called in another thread, too."""
        self._reason, self._steps = reason, steps

    def ask(self) -> None:
        """Ask for the end, as this rank has a reason. Called between two steps. Raises PeerLost."""
        if self._steps is not None and not self._promised:
            with self._barrier.peer_lost():
                self._promise_step(self._store, self._reason(), self._steps)

    def reached(self) -> End | None:
        """Called between two steps from `bound` on. Waits until all ranks have promised a step, and
        returns why they end if this was the last step; else None. Raises PeerLost."""
        self._barrier.wait_for(self._keys)
        with self._barrier.peer_lost():
            said = [_read(text, rank) for rank, text in
                    enumerate(self._store.multi_get(list(self._keys.values())))]
        self.bound = max(step for step, _ in said)
        if self._steps is None or self._steps() < self.bound:
            return None
        return _together(reason for _, reason in said)

    def watcher(self, store: Store) -> Callable[[], None]:
        """What the thread beside the training calls several times a second. `store` must be a
        connection that no other thread uses."""
        def check() -> None:
            steps, reason = self._steps, self._reason()
            if self._promised or steps is None:
                return
            with contextlib.suppress(RuntimeError):  # rank 0 may be gone
                if reason is not None or store.check([_ASKED]):
                    self._promise_step(store, reason, lambda: self._step_under_way(steps))
        return check

    def _promise_step(self, store: Store, reason: Reason | None, bound: Callable[[], int]) -> None:
        """Promise a step, once, and ask for the end if this rank has a reason."""
        with self._promise:
            if self._promised:
                return
            if reason is not None:
                store.set(_ASKED, "1")
            self.bound = step = bound()
            store.set(self._keys[self._rank], json.dumps([step, reason or Reason()]))
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


def _read(text: bytes, rank: int) -> tuple[int, Reason]:
    # Anybody who reaches the port could have written this: treat it as data only.
    try:
        bound, (stop, step, error) = json.loads(text)
        return int(bound), Reason(bool(stop), None if step is None else int(step), str(error))
    except (ValueError, TypeError) as err:
        raise PeerLost(f"rank {rank} sent something that is not a step to end at: "
                       f"{text[:200]!r}") from err


def _together(reasons: Iterable[Reason]) -> End:
    each = list(reasons)
    bad = [(reason.step, rank) for rank, reason in enumerate(each) if reason.step is not None]
    return End(any(reason.stop for reason in each), min(bad, default=None),
               next((reason.error for reason in each if reason.error), ""))
