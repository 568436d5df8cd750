"""Ranks that wait for each other's training data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from gpu_engine.worker.rank.process_group import Group


class Batches(Protocol):
    """Training data of one rank: `MapData` or `StreamData`."""

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Batches on the device, one a backward pass, from step `start` of the epoch on."""
        ...


class PatientData:
    """Training data whose ranks meet before an epoch's first collective: starting workers, reading
    an index, or reading again what a resumed stream had behind it takes one longer than another."""

    source: Batches
    """Set before the first epoch."""

    def __init__(self, group: Group) -> None:
        self._group, self._met = group, False

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """The epoch's batches, from step `start` on. All ranks begin an epoch together."""
        self._met = False
        batches = iter(self.source.epoch(epoch, start))
        first = next(batches, None)
        self._meet()
        if first is not None:
            yield first
            yield from batches

    def start_all_reduce_min(self, value: int) -> Callable[[], int]:
        """The group's, after all ranks have come that far."""
        self._meet()
        return self._group.start_all_reduce_min(value)

    def _meet(self) -> None:
        if not self._met:
            self._met = True
            self._group.meet()
