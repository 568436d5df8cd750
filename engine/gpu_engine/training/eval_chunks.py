"""Reads held-out examples in chunks that do not depend on the number of ranks.

With W ranks, rank i mod W reads chunk i. If an iterable dataset divides itself, each of its readers
has chunks of its own instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from gpu_engine.training.data import Reader, Request, map_loader, pin, tensor_bytes
from gpu_engine.training.division import KnownDivision
from gpu_engine.training.rng import mix
from gpu_engine.training.stream import StreamReader, stream_loader

SEED = 0xE7A1
"""The seed of every evaluation, whatever the run's, so that all draw the same random numbers."""


class HeldOut:
    """One rank's chunks of a dataset, which can be read any number of times."""

    def __init__(self, data: Any, chunk: int, *, rank: int, ranks: int, workers: int,
                 device: torch.device, collate: Callable, default_collate: bool) -> None:
        """`data`: a map-style dataset, or an iterable one's `KnownDivision`. `chunk`: examples in a
        chunk; the last may be smaller. `workers`: how many loader workers; they start at the first
        reading and are kept."""
        self._device = device
        self._loader: DataLoader | None = None
        self._stream: StreamReader | None = None
        if isinstance(data, KnownDivision):
            self._stream = StreamReader(
                data, rank=rank, ranks=ranks, size=chunk, collate=collate, seed=SEED,
                partial=True)
            self._loader = stream_loader(self._stream, workers, mix(SEED, rank), device)
            return
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
        for item in stream if self._loader is None else self._loader:
            if item.rest is None:
                yield item.number, pin(item.batch, self._device) if here else item.batch

    def _requests(self) -> Iterator[Request]:
        return (Request(mix(SEED, number), None, tensor_bytes(self._range(number)))
                for number in self._numbers)

    def _range(self, number: int) -> torch.Tensor:
        start = number * self._chunk
        return torch.arange(start, min(start + self._chunk, self._examples))
