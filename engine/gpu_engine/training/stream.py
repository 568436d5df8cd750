"""Reads iterable datasets so that each example is used once in an epoch.

A reader is one loader worker of a rank, or the rank itself if it has no workers. PyTorch gives each
of them a copy of the dataset and leaves it to the dataset to read only a part: with
`get_worker_info()` in the documented pattern, or by its rank. A dataset that divides itself must
not be divided once more; any other one must be. The interface does not tell which kind a dataset
is, so it says so with an attribute `divided_by`, or its task does. Whatever it does not divide, the
readers divide: each reads all of the stream and keeps its part.

- A dataset that does not divide itself: blocks of one backward pass's examples are dealt out in
  turn, first over the ranks, then over the workers. So a step uses the same examples of the stream,
  however many workers there are.
- One that divides by worker: each worker's examples are dealt out over the ranks.
- One that divides by rank: blocks are dealt out over the rank's workers.

Random numbers follow only from the seed, the epoch, and the reader's number within a division by
the dataset. Readers that share one stream draw the same numbers: otherwise each would see another
order, and examples would be read twice or never. Readers among which the dataset divides draw the
same up to its first example, as it may shuffle all before it takes its part, and then different
ones.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from gpu_engine.common.errors import UserError
from gpu_engine.training.data import mover, pin, tell_epoch, worker_loader
from gpu_engine.training.rng import OwnRandomness, mix

RANK, WORKER = "rank", "worker"
_SAYS = {"nothing": frozenset(), "workers": frozenset({WORKER}), "ranks": frozenset({RANK}),
         "both": frozenset({RANK, WORKER})}
_COLLATE = 0xC011A7E


def divided_by(data: Any, task: Any, *, ranks: int, workers: int) -> frozenset[str]:
    """What `data` divides itself by (RANK, WORKER), by its attribute `divided_by` or that of
    `task`. `workers`: of each of the `ranks`; 0 for none.

    Raises UserError if there is more than one reader and nothing says it, or if `divided_by` has an
    unknown value.
    """
    for who in (data, task):
        says = getattr(who, "divided_by", None)
        if says is None:
            continue
        if says not in _SAYS:
            raise UserError(f"{type(who).__name__}.divided_by is {says!r}; it takes "
                            + ", ".join(f'"{word}"' for word in _SAYS))
        return _SAYS[says]
    if ranks <= 1 and workers <= 1:
        return frozenset()
    name, readers = type(data).__name__, f"{ranks} ranks" if ranks > 1 else "one rank"
    if workers:
        readers += f" with {workers} loader workers" + (" each" if ranks > 1 else "")
    raise UserError(
        f"{readers} would read {name}, and it does not say how it divides itself among them. Say "
        f"it in two lines,\n"
        f"    class {name}(IterableDataset):\n"
        '        divided_by = "nothing"\n'
        'if each reader would get all examples, which are then dealt out; or "workers" (it uses '
        'get_worker_info()), "ranks" (it uses the rank), "both" (as webdataset with split_by_node, '
        "or datasets after split_dataset_by_node). The task may say it too, or "
        'data.divided_by = "both"')


class StreamBatch(NamedTuple):
    """A batch from a reader, or the reader's last examples if they are too few for one."""

    number: int
    """Rises within each reader and differs between all readers. If the dataset does not divide
    itself, it is the position of the batch in the stream."""
    worker: int
    batch: Any
    rest: bytes | None
    """None if this is a batch; else the last examples, pickled, and `batch` is None."""


class StreamReader(IterableDataset):
    """The part of a stream that one reader reads, in batches."""

    def __init__(self, data: Any, by: frozenset[str], *, rank: int, ranks: int, size: int,
                 collate: Callable, seed: int, partial: bool = False) -> None:
        """`by`: what the dataset divides itself by; `size`: examples in a batch; `partial`: the
        last batch may be smaller."""
        self._data, self._by, self._rank, self._ranks = data, by, rank, ranks
        self._size, self._collate, self._seed, self._partial = size, collate, seed, partial
        # In shared memory, as the loader workers live over all epochs.
        self._epoch = multiprocessing.get_context("fork").RawValue(ctypes.c_int64, -1)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that readers tell the dataset of when they start the next pass."""
        self._epoch.value = epoch

    def __iter__(self) -> Iterator[StreamBatch]:
        info, epoch = get_worker_info(), self._epoch.value
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        part = _Part(self._data, self._by, rank=self._rank, ranks=self._ranks, worker=worker,
                     workers=workers, size=self._size, seed=self._seed, epoch=epoch)
        reader, readers = worker * self._ranks + self._rank, self._ranks * workers
        batches = 0
        while True:
            examples = part.next_examples(self._size)
            number = batches * readers + reader
            if len(examples) < self._size and not (self._partial and examples):
                yield StreamBatch(number, worker, None, _pickled(examples))
                return
            with OwnRandomness(mix(self._seed, epoch, reader, batches, _COLLATE)):
                batch = self._collate(examples)
            yield StreamBatch(number, worker, batch, None)
            batches += 1


class _Part:
    """One reader's pass over its part of a stream, example by example."""

    def __init__(self, data: Any, divides: frozenset[str], *, rank: int, ranks: int, worker: int,
                 workers: int, size: int, seed: int, epoch: int) -> None:
        self._size, self._seed = size, mix(seed, epoch)
        self._number = {RANK: rank, WORKER: worker}
        self._counts = {RANK: ranks, WORKER: workers}
        several = frozenset(what for what in (RANK, WORKER) if self._counts[what] > 1)
        by, ours = several & divides, several - divides
        self._draws = OwnRandomness(self._own_seed(frozenset()))
        with self._draws:
            if epoch >= 0:
                tell_epoch(data, epoch)
            stream = iter(data)
            first = list(islice(stream, 1))
        if by:
            self._draws.reseed(self._own_seed(by))
        index, count, block = self._selection(ours)
        self._mine = (example for number, example in enumerate(chain(first, stream))
                      if number // block % count == index)

    def next_examples(self, count: int) -> list[Any]:
        """The next `count` examples of this part; fewer at its end."""
        with self._draws:
            return list(islice(self._mine, count))

    def _selection(self, ours: frozenset[str]) -> tuple[int, int, int]:
        """(index, count, block): of the blocks of `block` examples, this reader keeps every
        `count`-th, beginning with number `index`, if what is in `ours` is divided here."""
        index, count = self._number_among(ours)
        if ours == {RANK} and self._counts[WORKER] > 1:
            # The workers' streams may have any length: dealing single examples keeps ranks even.
            return (index + self._number[WORKER]) % count, count, 1
        return index, count, self._size

    def _number_among(self, ours: frozenset[str]) -> tuple[int, int]:
        """(index, count) of this reader among those of the other ranks, workers or both (`ours`).
        Ranks come first, so that a remainder is spread over ranks and not left to one."""
        index, count = 0, 1
        for what in (RANK, WORKER):
            if what in ours:
                index, count = index + self._number[what] * count, count * self._counts[what]
        return index, count

    def _own_seed(self, divided: frozenset[str]) -> int:
        return mix(self._seed, *(self._number[w] + 1 if w in divided else 0
                                 for w in (RANK, WORKER)))


class StreamData:
    """Training batches of an iterable dataset, for one rank.

    The ranks' parts may differ in length. Before each step all ranks agree on whether each of them
    has enough for it; the epoch ends for all ranks as soon as one has not. One step is read ahead,
    so that this reduction runs while the step before computes.
    """

    def __init__(self, data: Any, by: frozenset[str], *, micro: int, accumulate: int, rank: int,
                 ranks: int, workers: int, device: torch.device, collate: Callable, seed: int,
                 meet: Callable[[], None],
                 start_all_reduce_min: Callable[[int], Callable[[], int]],
                 copies: Callable[[], None] = lambda: None) -> None:
        """`by`: what the dataset divides itself by; `micro`: examples in one backward pass of this
        rank; `meet` waits until all ranks have come, however long one takes; `copies`: as for
        `MapData`."""
        self._micro, self._accumulate, self._collate = micro, accumulate, collate
        self._rank, self._seed, self._device = rank, seed, device
        self._meet, self._start_all_reduce_min = meet, start_all_reduce_min
        self._moved = mover(device, copies)
        self._reader = StreamReader(data, by, rank=rank, ranks=ranks, size=micro, collate=collate,
                                    seed=seed)
        self._loader = stream_loader(self._reader, workers, mix(seed, rank), device)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """The epoch's batches on the device, one for each backward pass, from step `start` on.
        What comes before `start` is read too, and thrown away."""
        self._reader.set_epoch(epoch)
        source = self._batches(epoch)
        for _ in range(start * self._accumulate):
            if next(source, None) is None:
                break
        step = self._whole_step(source)
        self._meet()
        answer = self._start_all_reduce_min(int(step is not None))
        while answer():
            ahead = self._whole_step(source)
            answer = self._start_all_reduce_min(int(ahead is not None))
            for batch in step or ():
                yield self._moved(batch)
            step = ahead

    def _whole_step(self, source: Iterator[Any]) -> list[Any] | None:
        batches = list(islice(source, self._accumulate))
        return batches if len(batches) == self._accumulate else None

    def _batches(self, epoch: int) -> Iterator[Any]:
        """The workers' batches in turn, and then batches made of the examples that were left over
        in all workers."""
        rests = {}
        for item in self._reader if self._loader is None else self._loader:
            if item.rest is None:
                yield pin(item.batch, self._device) if self._loader is None else item.batch
            else:
                rests[item.worker] = item.rest
        left = [x for _, rest in sorted(rests.items()) for x in pickle.loads(rest)]
        for at in range(0, len(left) - self._micro + 1, self._micro):
            with OwnRandomness(mix(self._seed, epoch, self._rank, at, _COLLATE + 1)):
                batch = self._collate(left[at:at + self._micro])
            yield pin(batch, self._device)


def stream_loader(reader: StreamReader, workers: int, seed: int,
                  device: torch.device) -> DataLoader | None:
    """A loader whose workers live over all epochs and are one reader each; None for no workers."""
    return worker_loader(reader, workers, seed, device, batch_size=None) if workers else None


def _pickled(examples: list[Any]) -> bytes:
    """Examples as bytes. Examples that can't be pickled, and can only be collated, are left out."""
    try:
        return pickle.dumps(examples)
    except Exception:  # noqa: BLE001 - a person's class may raise anything
        return pickle.dumps([])
