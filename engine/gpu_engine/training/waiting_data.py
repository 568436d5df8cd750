"""Training data at whose first batch the ranks wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Protocol

from gpu_engine.worker.rank.process_group import Group


class Batches(Protocol):
    """Training data of one rank: `MapData` or `StreamData`."""

    begins_at_once: bool
    """Whether an epoch's first batch takes no longer than the others."""

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """The epoch's batches on the device, one for each backward pass, from step `start` on."""
        ...


class WaitingData:
    """Training data whose ranks meet before the first collective of an epoch. Until then some
    ranks may take much longer than others: to start workers, to read an index, or to skip what a
    resumed stream has read before. If no rank's data can take longer, they meet in the first epoch
    only."""

    source: Batches
    """The data itself. Set it before the first epoch."""

    def __init__(self, group: Group) -> None:
        self._group, self._met = group, False
        self._all_at_once: bool | None = None
        """Whether all ranks' data begins at once, so that later epochs need no meeting. Known from
        the first one on."""

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """The epoch's batches, from step `start` on."""
        return chain.from_iterable(self._first_and_rest(epoch, start))

    def _first_and_rest(self, epoch: int, start: int) -> Iterator[Iterable[Any]]:
        self._met = self._all_at_once is True
        batches = iter(self.source.epoch(epoch, start))
        first = next(batches, None)
        self._wait_for_all()
        if first is not None:
            yield (first,)
            yield batches

    def start_all_reduce_min(self, value: int) -> Callable[[], int]:
        """The group's `start_all_reduce_min`, called once all ranks have come this far."""
        self._wait_for_all()
        return self._group.start_all_reduce_min(value)

    def _wait_for_all(self) -> None:
        if not self._met:
            self._met = True
            self._group.barrier()
            if self._all_at_once is None:
                slow = self._group.all_reduce_max([float(not self.source.begins_at_once)])
                self._all_at_once = not slow[0]
