"""Signs of life: each rank leaves one a second on the store, with what it is doing, for those that
wait for it."""

from __future__ import annotations

import contextlib
import json

from gpu_engine.common import units
from gpu_engine.worker.rank.recorder import Recorder
from gpu_engine.worker.rank.store import Store

INTERVAL = 1.0
"""Seconds between two signs of life."""
_ACTIVITY = {"init": "getting ready", "data": "reading its data", "forward": "in a step",
             "backward": "in a step", "optimizer": "in a step", "eval": "evaluating",
             "checkpoint": "saving", "done": "ended"}


class Heartbeat:
    """Leaves a rank's signs of life, from another thread than the one that trains."""

    def __init__(self, rank: int, store: Store) -> None:
        """`store`: a connection that no other thread uses."""
        self._rank, self._store = rank, store
        self._count = 0

    def __call__(self, activity: str) -> None:
        """A sign of life, with what the rank is doing in words."""
        self._count += 1
        with contextlib.suppress(RuntimeError):  # rank 0 may have gone
            self._store.set(_key(self._rank), json.dumps([self._count, activity[:500]]))


def last(rank: int, store: Store) -> str:
    """The last sign of life of a rank, a text that differs from the one before; "" for none.
    Raises RuntimeError where the store is gone."""
    key = _key(rank)
    return store.get(key).decode() if store.check([key]) else ""


def activity_in(sign: str) -> str:
    """What a sign of life (`last`) says that its rank does, in words."""
    # It comes over the network from whoever reaches the port: text, nothing more.
    try:
        return str(json.loads(sign)[1])[:500]
    except (ValueError, IndexError, TypeError, KeyError):
        return "not heard of"


def activity(rec: Recorder) -> str:
    """What the rank of `rec` is doing, in words, for those that wait for it."""
    writing = rec.writing
    if rec.phase == "checkpoint" and writing is not None:
        return f"writing a checkpoint: {units.size(writing.done)} of {units.size(writing.total)}"
    return rec.details() or _ACTIVITY.get(rec.phase, rec.phase)


def _key(rank: int) -> str:
    return f"gpu-panel/beat/{rank}"
