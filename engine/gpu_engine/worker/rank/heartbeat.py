"""Heartbeats: once a second each rank puts one on the store, with what it is doing, for the ranks
that wait for it."""

from __future__ import annotations

import contextlib
import json

from gpu_engine.common import units
from gpu_engine.worker.rank.recorder import Recorder
from gpu_engine.worker.rank.store import Store

INTERVAL = 1.0
"""Seconds between two heartbeats."""
_ACTIVITY = {"init": "getting ready", "data": "reading its data", "forward": "in a step",
             "backward": "in a step", "optimizer": "in a step", "eval": "evaluating",
             "checkpoint": "saving", "done": "ended"}


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
            self._store.set(_key(self._rank), json.dumps([self._count, activity[:500]]))


def last(rank: int, store: Store) -> str:
    """The last heartbeat of a rank, a text that differs from that of any other; "" if there is
    none. Raises RuntimeError if the store is gone."""
    key = _key(rank)
    return store.get(key).decode() if store.check([key]) else ""


def activity_in(heartbeat: str) -> str:
    """What the rank was doing, in words, according to a heartbeat that `last` returned."""
    # Anybody who reaches the port could have written this: treat it as text only.
    try:
        return str(json.loads(heartbeat)[1])[:500]
    except (ValueError, IndexError, TypeError, KeyError):
        return "no heartbeat yet"


def activity(rec: Recorder) -> str:
    """What the rank of `rec` is doing now, in words, for the ranks that wait for it."""
    writing = rec.writing
    if rec.phase == "checkpoint" and writing is not None:
        return f"writing a checkpoint: {units.size(writing.done)} of {units.size(writing.total)}"
    return rec.details() or _ACTIVITY.get(rec.phase, rec.phase)


def _key(rank: int) -> str:
    return f"gpu-panel/beat/{rank}"
