"""Reads held-out examples in chunks that do not depend on the number of ranks.

With W ranks, rank i mod W reads chunk i. If an iterable dataset divides itself, each of its readers
has chunks of its own instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from gpu_engine.training import division
from gpu_engine.training.data import Reader, Request, map_loader, pin, tensor_bytes
from gpu_engine.training.reader_reports import ReaderReports
from gpu_engine.training.rng import mix
from gpu_engine.training.stream import StreamReader, stream_loader, with_clear_errors

SEED = 0xE7A1
"""The seed of every evaluation, whatever the run's, so that all draw the same random numbers."""


class HeldOut:
    """One rank's chunks of a dataset, which can be read any number of times."""

    def __init__(self, data: Any, chunk: int, *, rank: int, ranks: int, workers: int,
                 device: torch.device, collate: Callable, default_collate: bool,
                 gather: Callable[[bytes], list[bytes]], warn: Callable[[str], None],
                 watched: frozenset[str] = frozenset()) -> None:
        """`chunk`: examples in a chunk; the last may be smaller. `workers`: how many loader
        workers; they start at the first reading and are kept. The rest is as in `StreamData`."""
        self._device = device
        self._loader: DataLoader | None = None
        if isinstance(data, IterableDataset):
            known = division.known_division(data, rank, ranks, watched)
            self._reports = ReaderReports("the evaluation's stream", known, workers,
                                                   gather, warn)
            self._compare = not known.sure and ranks * max(workers, 1) > 1
            self._stream: StreamReader | None = StreamReader(
                known, rank=rank, ranks=ranks, size=chunk, collate=collate, seed=SEED,
                partial=True)
            self._loader = stream_loader(self._stream, workers, mix(SEED, rank), device)
            return
        self._stream, self._compare = None, False
        self._reader = Reader(data, collate, default_collate)
        self._examples, self._chunk = len(data), chunk
        self._numbers = range(rank, -(-self._examples // chunk), ranks)
        workers = min(workers, len(self._numbers))
        if workers and not self._reader.only_indexes_tensors:
            self._loader = map_loader(self._reader, self._requests, workers=workers,
                                      seed=mix(SEED, rank), device=device)

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """(number, batch) of each chunk of this rank. Batches are on the host, in pinned memory if
        the device is a GPU."""
        if self._stream is not None:
            yield from self._streamed(self._stream)
        elif self._loader is not None:
            # The loader first, so that it comes to its own end.
            for batch, number in zip(self._loader, self._numbers):
                yield number, batch
        else:
            for number in self._numbers:
                yield number, pin(self._reader.read_here(mix(SEED, number), self._range(number)),
                                  self._device)

    def _streamed(self, stream: StreamReader) -> Iterator[tuple[int, Any]]:
        here = self._loader is None
        for item in with_clear_errors(stream if self._loader is None else self._loader):
            self._reports.take(item.worker, item.report)
            if item.rest is None:
                yield item.number, pin(item.batch, self._device) if here else item.batch

    def check(self) -> None:
        """After the first complete reading, warn if the data seems to be divided wrongly. All
        ranks call it together."""
        if self._compare:
            self._compare = False
            self._reports.compare()
            self._reports.count()

    def _requests(self) -> Iterator[Request]:
        return (Request(mix(SEED, number), None, tensor_bytes(self._range(number)))
                for number in self._numbers)

    def _range(self, number: int) -> torch.Tensor:
        start = number * self._chunk
        return torch.arange(start, min(start + self._chunk, self._examples))
