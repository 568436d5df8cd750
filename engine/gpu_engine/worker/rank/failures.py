"""Which rank failed first: ranks announce their failures to each other, so that an error which
only follows from another rank's failure can be told apart."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable

import torch.distributed as dist

from gpu_engine.common.errors import UserError, own_fault
from gpu_engine.worker.rank.store import Store

_LINGER = 3.0
_PATIENCE = 3.0
"""Seconds that a failing rank waits for the store's answer: the link to it may be cut."""


class PeerLost(UserError):
    """Another rank failed or is gone, and this one can't go on without it."""

    title = "Another rank failed"


class Failures:
    """Announces this rank's failure and reads those of the others. With a single rank it does
    nothing."""

    def __init__(self, rank: int, size: int, store: Store | None = None) -> None:
        self._rank, self._size, self._store = rank, size, store
        self._heard: str | None = None

    def announce(self, message: str) -> None:
        """Put this rank's failure on the store, for ranks that would otherwise only notice that it
        is gone.

        Rank 0 holds the store, so it stays until the others have read it, for a few seconds at
        most.
        """
        if self._store is None or self._size == 1:
            return
        store, text = self._store, json.dumps({"rank": self._rank, "message": message[:2000]})

        def announce_once() -> None:
            with contextlib.suppress(Exception):
                # The first announcement is kept: later failures often only follow from it.
                store.compare_set("gpu-panel/failed", "", text)
                store.set(f"gpu-panel/saw/{self._rank}", "1")

        _within(_PATIENCE, announce_once)
        with contextlib.suppress(Exception):
            if self._rank == 0:
                if dist.get_backend() == "gloo":
                    dist.destroy_process_group()  # wakes ranks that wait for this one
                deadline = time.monotonic() + _LINGER
                others = [f"gpu-panel/saw/{r}" for r in range(1, self._size)]
                while time.monotonic() < deadline and not store.check(others):
                    time.sleep(0.02)

    def of_others(self) -> str | None:
        """The failure that another rank has announced, as "rank 1: …"; None if there is none or
        the store can't be reached."""
        return self._heard or self._listen(self._store)

    def watcher(self, store: Store) -> Callable[[], str | None]:
        """`of_others` for another thread. `store`: a connection that no other thread uses."""
        return lambda: self._heard or self._listen(store)

    def _listen(self, store: Store | None) -> str | None:
        if store is None:
            return None
        try:
            if not store.check(["gpu-panel/failed"]):
                return None
            word = json.loads(store.get("gpu-panel/failed"))
            # Anybody who reaches the port could have written this: treat it as data only.
            if word["rank"] != self._rank:
                self._heard = f"rank {int(word['rank'])}: {str(word['message'])[:2000]}"
                store.set(f"gpu-panel/saw/{self._rank}", "1")
        except Exception:  # noqa: BLE001 - the store lives on rank 0, which may be gone
            pass
        return self._heard


def blame(err: BaseException, failures: Failures) -> BaseException:
    """`err` itself, or PeerLost if `err` only follows from the failure of another rank."""
    if _is_connection(err):
        word = _within(_PATIENCE, lambda: _announced(failures))
        if word:
            return PeerLost(f"{word} (this rank could not go on without it)")
        return PeerLost("the connection to another rank broke: it ended or its machine can't be "
                        f"reached ({first_line(err)})")
    return err


def _announced(failures: Failures) -> str | None:
    """The failure that another rank announces within a second."""
    for _ in range(10):
        word = failures.of_others()
        if word:
            return word
        time.sleep(0.1)
    return None


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
