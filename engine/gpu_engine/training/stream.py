"""Reads iterable datasets so that each example is used once in an epoch.

A reader is one loader worker of a rank, or the rank itself if it has no workers. PyTorch gives each
of them a copy of the dataset and leaves it to the dataset to read only a part: with
`get_worker_info()` in the documented pattern, or by its rank. A dataset that divides itself must
not be divided once more; any other one must be. The interface does not tell which kind a dataset
is, so it says so with an attribute `divided_by`, or its task does. Whatever it does not divide, the
readers divide: each reads all of the stream and keeps its part. Blocks of one backward pass's
examples are dealt out in turn, first over the ranks, then over the workers. So of a dataset that
does not divide itself a step uses the same examples, however many workers there are. What does not
fill a block at the end of a reader's part is left out.

Random numbers follow only from the seed, the epoch, and the reader's number within a division by
the dataset. Readers that share one stream draw the same numbers: otherwise each would see another
order, and examples would be read twice or never. Readers among which the dataset divides draw the
same up to its first example, as it may shuffle all before it takes its part, and then different
ones.
"""

from __future__ import annotations

import ctypes
import multiprocessing
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from gpu_engine.common.errors import UserError
from gpu_engine.common.units import counted
from gpu_engine.training.data import loader, on_device, tell_epoch
from gpu_engine.training.rng import OwnRandomness, mix
from gpu_engine.training.task import Task
from gpu_engine.worker.rank.group import Group

RANK, WORKER = "rank", "worker"
_SAYS = {"nothing": (), "workers": (WORKER,), "ranks": (RANK,), "both": (RANK, WORKER)}
_COLLATE = 0xC011A7E


def divided_by(data: Any, task: Task, *, ranks: int, workers: int) -> tuple[str, ...]:
    """What `data` divides itself by (RANK, WORKER), by its attribute `divided_by` or that of
    `task`. `workers`: of each of the `ranks`; 0 for none.

    Raises UserError if there is more than one reader and nothing says it, or if `divided_by` has an
    unknown value.
    """
    says = getattr(data, "divided_by", None) or task.divided_by
    if says in _SAYS:
        return _SAYS[says]
    if says is None and ranks <= 1 and workers <= 1:
        return ()
    name = type(data).__name__
    raise UserError(
        f"{counted(ranks, 'rank')} with {counted(workers, 'loader worker')} each would read "
        f"{name}, whose divided_by is {says!r}. Say how it divides itself among them, in two "
        "lines,\n"
        f"    class {name}(IterableDataset):\n"
        '        divided_by = "nothing"\n'
        'if each reader would get all examples, which are then dealt out; or "workers" (it uses '
        'get_worker_info()), "ranks" (it uses the rank), "both" (as webdataset with split_by_node, '
        "or datasets after split_dataset_by_node). The task may say it too, or "
        'data.divided_by = "both"')


class StreamReader(IterableDataset):
    """The part of a stream that one reader reads, in batches."""

    def __init__(self, data: Any, task: Task, *, rank: int, ranks: int, workers: int, size: int,
                 seed: int, partial: bool = False) -> None:
        """`size`: examples in a batch; `partial`: the last batch may be smaller. Raises UserError
        as `divided_by` does."""
        self._data, self._collate, self._rank, self._ranks = data, task.collate, rank, ranks
        self._by = divided_by(data, task, ranks=ranks, workers=workers)
        self._size, self._seed, self._partial = size, seed, partial
        # In shared memory, as the loader workers live over all epochs.
        self._epoch = multiprocessing.get_context("fork").RawValue(ctypes.c_int64, -1)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that readers tell the dataset of when they start the next pass."""
        self._epoch.value = epoch

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """(number, batch). The number rises within each reader and differs between all readers. If
        the dataset does not divide itself, it is the position of the batch in the stream."""
        info, epoch, size = get_worker_info(), self._epoch.value, self._size
        number = {RANK: self._rank, WORKER: info.id if info else 0}
        counts = {RANK: self._ranks, WORKER: info.num_workers if info else 1}
        index, count = 0, 1  # of this reader among those that get the same stream
        for what in (RANK, WORKER):
            if what not in self._by:
                index, count = index + number[what] * count, count * counts[what]
        if WORKER in self._by:  # else a first block more would always be the first rank's
            index = (index + number[WORKER]) % count
        own = {what: number[what] + 1 for what in self._by if counts[what] > 1}
        draws = OwnRandomness(mix(self._seed, epoch, 0, 0))
        with draws:
            if epoch >= 0:
                tell_epoch(self._data, epoch)
            stream = iter(self._data)
            first = list(islice(stream, 1))
        if own:
            draws.reseed(mix(self._seed, epoch, own.get(RANK, 0), own.get(WORKER, 0)))
        mine = (example for at, example in enumerate(chain(first, stream))
                if at // size % count == index)
        batch_number = number[WORKER] * self._ranks + self._rank
        while True:
            with draws:
                examples = list(islice(mine, size))
            if not examples or (len(examples) < size and not self._partial):
                return
            with OwnRandomness(mix(self._seed, epoch, batch_number, _COLLATE)):
                batch = self._collate(examples)
            yield batch_number, batch
            batch_number += counts[RANK] * counts[WORKER]


class StreamData:
    """Training batches of an iterable dataset, for one rank.

    The ranks' parts may differ in length. Before each step all ranks agree on whether each of them
    has enough for it; the epoch ends for all ranks as soon as one has not. One step is read ahead,
    so that this reduction runs while the step before computes.
    """

    def __init__(self, data: Any, task: Task, *, micro: int, accumulate: int, workers: int,
                 device: torch.device, seed: int, group: Group,
                 copies: Callable[[], None] = lambda: None) -> None:
        """`micro`: examples in one backward pass of this rank; the rest as for `MapData`."""
        self._accumulate, self._group = accumulate, group
        self._device, self._copies = device, copies
        self._reader = StreamReader(data, task, rank=group.rank, ranks=group.size, workers=workers,
                                    size=micro, seed=seed)
        self._loader = loader(self._reader, workers, mix(seed, group.rank), device, batch_size=None)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """The epoch's batches on the device, one for each backward pass, from step `start` on.
        What comes before `start` is read too, and thrown away."""
        return on_device(self._agreed(epoch, start), self._device, self._copies)

    def _agreed(self, epoch: int, start: int) -> Iterator[Any]:
        self._reader.set_epoch(epoch)
        source = (batch for _, batch in self._loader)
        for _ in islice(source, start * self._accumulate):
            pass
        step = list(islice(source, self._accumulate))
        self._group.barrier()
        whole = self._all_have(step)
        while whole():
            ahead = list(islice(source, self._accumulate))
            whole = self._all_have(ahead)
            yield from step
            step = ahead

    def _all_have(self, batches: list[Any]) -> Callable[[], bool]:
        """Start to ask whether all ranks have a whole step's batches; the answer."""
        having = self._group.start_all_reduce_sum(
            torch.tensor(int(len(batches) == self._accumulate)))
        return lambda: int(having()) == self._group.size
