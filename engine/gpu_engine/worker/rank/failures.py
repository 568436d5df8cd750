"""Which rank failed: what ranks tell each other of it, and whether an error is only the echo of
another rank's."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable

import torch.distributed as dist

from gpu_engine.common.errors import UserError
from gpu_engine.worker.rank.heartbeat import Heartbeat
from gpu_engine.worker.rank.store import Store

_LINGER = 3.0
_OWN = ("ncclinvalid", "invalid usage", "duplicate gpu", "ncclunhandledcuda", "cuda error",
        "out of memory")
"""What NCCL says where the fault is this rank's, though it comes as its backend's error."""


class PeerLost(UserError):
    """Another rank failed or went away; this one can't go on alone."""

    title = "Another rank failed"


class Failures:
    """What this rank says and hears of failures. With one rank nobody is there to hear."""

    def __init__(self, rank: int, size: int, store: Store | None = None) -> None:
        self._rank, self._size, self._store = rank, size, store
        self._heard: str | None = None

    def announce(self, message: str) -> None:
        """Leave word that this rank failed, for those that will notice only that it is gone.

        Rank 0 holds the store: it stays until the others have read, for a few seconds at most.
        """
        if self._store is None or self._size == 1:
            return
        with contextlib.suppress(Exception):
            text = json.dumps({"rank": self._rank, "message": message[:2000]})
            # The first word stands: a later failure is often an echo of it.
            self._store.compare_set("gpu-panel/failed", "", text)
            self._store.set(f"gpu-panel/saw/{self._rank}", "1")
            if self._rank == 0:
                if dist.get_backend() == "gloo":
                    dist.destroy_process_group()  # wakes those that wait for this rank
                deadline = time.monotonic() + _LINGER
                others = [f"gpu-panel/saw/{r}" for r in range(1, self._size)]
                while time.monotonic() < deadline and not self._store.check(others):
                    time.sleep(0.02)

    def heard(self) -> str | None:
        """What another rank announced, where it can be read: "rank 1: …"."""
        return self._heard or self._listen(self._store)

    def watcher(self) -> tuple[Callable[[], str | None], Callable[[str], None]]:
        """`heard` and a `Heartbeat`, for another thread, on a connection of its own: one that a
        collective waits on would be busy."""
        if self._store is None or self._size == 1:
            return lambda: None, lambda activity: None
        own = self._store.clone()
        return lambda: self._heard or self._listen(own), Heartbeat(self._rank, own)

    def _listen(self, store: Store | None) -> str | None:
        if store is None:
            return None
        try:
            if not store.check(["gpu-panel/failed"]):
                return None
            word = json.loads(store.get("gpu-panel/failed"))
            # It comes over the network from whoever reaches the port: data, nothing more.
            if word["rank"] != self._rank:
                self._heard = f"rank {int(word['rank'])}: {str(word['message'])[:2000]}"
                store.set(f"gpu-panel/saw/{self._rank}", "1")
        except Exception:  # noqa: BLE001 - the store lives on rank 0, which may be gone
            pass
        return self._heard


def blame(err: BaseException, failures: Failures) -> BaseException:
    """`err`, or PeerLost where it only follows from the failure of another rank."""
    if _is_connection(err):
        for _ in range(10):
            word = failures.heard()
            if word:
                return PeerLost(f"{word} (this rank could not go on without it)")
            time.sleep(0.1)
        return PeerLost("the connection to another rank broke: it ended or its machine can't be "
                        f"reached ({first_line(err)})")
    return err


def first_line(err: BaseException) -> str:
    """The first line of what an error says, without PyTorch's guess at its cause; its type where
    it says nothing."""
    text = str(err).strip()
    return text.splitlines()[0].partition(". This is typically")[0] if text else type(err).__name__


def _is_connection(err: BaseException) -> bool:
    """Whether it is what gloo, NCCL or the store raise when another rank is gone. By who raised
    it: a task's own errors may speak of NCCL or of a read that timed out, too."""
    text = str(err).lower()
    if isinstance(err, dist.DistError):
        return not any(sign in text for sign in _OWN)
    return isinstance(err, RuntimeError) and "gloo/" in text  # the source file it comes from
