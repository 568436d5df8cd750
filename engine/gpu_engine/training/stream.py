"""Reading iterable datasets: each example once an epoch, whoever divides it over the readers.

A reader is one loader worker of one rank, or the rank itself. What the dataset doesn't divide,
readers do by reading all of it and keeping a part (see `division` for who divides):

- divided by nobody: blocks of one backward pass's examples go round, first over the ranks, then
  over the workers, so that a step sees the same examples of the stream whatever their numbers
- divided by worker: each worker's examples go round over the ranks
- divided by rank: blocks go round over the rank's workers
- with a method `shard`: by that

Random numbers: readers among which we divide draw the same ones, or each would see another order
and an example would be read twice or never; readers among which the dataset divides draw others,
from the moment it asks who they are. All follow from seed, epoch and that place alone.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from itertools import chain, islice
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from gpu_engine.common.errors import UserError
from gpu_engine.training import division
from gpu_engine.training.data import move, pin, same, tell_epoch, worker_init
from gpu_engine.training.division import RANK, WORKER, Known, ReaderReport
from gpu_engine.training.rng import Draws, mix

_COLLATE = 0xC011A7E


class StreamBatch(NamedTuple):
    """What a reader hands on: a batch, or at its end what was too little for one."""

    number: int
    """Numbers of batches rise in each reader and differ between all of them; where nobody
    divides the stream, it's the batch's place in it."""
    worker: int
    batch: Any
    rest: bytes | None
    """None: this is a batch. Else the last examples, pickled, and there is no batch."""
    report: str
    """`ReaderReport.to_json` of the reader."""


class StreamReader(IterableDataset):
    """What one reader reads of a stream, in batches."""

    def __init__(self, known: Known, *, rank: int, ranks: int, size: int, collate: Callable,
                 seed: int, partial: bool = False) -> None:
        """`size`: examples a batch; `partial`: the last batch may be smaller."""
        self._known, self._rank, self._ranks = known, rank, ranks
        self._size, self._collate, self._seed, self._partial = size, collate, seed, partial
        self._remembered: set[str] = set()
        # Memory that the loader workers share: they stay over epochs.
        self._epoch = multiprocessing.get_context("fork").RawValue(ctypes.c_int64, -1)

    def set_epoch(self, epoch: int) -> None:
        """Which epoch readers tell the dataset of when they start the next time."""
        self._epoch.value = epoch

    def __iter__(self) -> Iterator[StreamBatch]:
        info, epoch = get_worker_info(), self._epoch.value
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        part = _Part(self._known, rank=self._rank, ranks=self._ranks, worker=worker,
                     workers=workers, size=self._size, seed=self._seed, epoch=epoch, info=info,
                     remembered=self._remembered)
        reader, readers = worker * self._ranks + self._rank, self._ranks * workers
        batches = 0

        def made(batch: Any, rest: bytes | None = None) -> StreamBatch:
            report = replace(part.report, ended=rest is not None)
            return StreamBatch(batches * readers + reader, worker, batch, rest, report.to_json())

        with part.open():
            while True:
                examples = part.take(self._size)
                if len(examples) < self._size and not (self._partial and examples):
                    break
                with Draws(mix(self._seed, epoch, reader, batches, _COLLATE)):
                    batch = self._collate(examples)
                yield made(batch)
                batches += 1
        yield made(None, _pickled(examples))


class _Part:
    """One reader's pass over its part of a stream, one example after the other."""

    def __init__(self, known: Known, *, rank: int, ranks: int, worker: int, workers: int,
                 size: int, seed: int, epoch: int, info: Any, remembered: set[str]) -> None:
        """`remembered`: what the dataset was seen to divide itself by, from the first example on,
        in passes before this one in the same process; what is seen now is added."""
        self._remembered, self._before = remembered, frozenset(remembered)
        self._known, self._size, self._info = known, size, info
        self._seed, self._epoch = mix(seed, epoch), epoch
        self._place = {RANK: rank, WORKER: worker}
        self._counts = {RANK: ranks, WORKER: workers}
        self._watch = division.Watch(self._on_division)
        self._watching = not known.sure and ranks * workers > 1
        self._reading = False
        self.by = self._itself = self._at_first = self._several(known.by)
        """What the stream is divided by without our choosing examples."""
        self._late, self._first = False, None
        self._read = self._kept = 0
        self._draws = Draws(0)

    @property
    def report(self) -> ReaderReport:
        """What there is to say of it so far."""
        return ReaderReport(self._at_first, self._late, self._first, self._read, self._kept)

    def open(self) -> ExitStack:
        """Read the first example, to find out who divides. What is returned is to be closed
        when no more are taken: a loader worker is watched throughout."""
        with ExitStack() as opening:
            if self._info is not None:
                opening.enter_context(self._watched())
            self._start()
            return opening.pop_all()

    def take(self, count: int) -> list[Any]:
        """The next `count` examples of this part, fewer at its end."""
        self._reading = True
        with self._draws, nullcontext() if self._info is not None else self._watched():
            found = list(islice(self._mine, count))
        self._reading = False
        self._kept += len(found)
        return found

    def _watched(self) -> AbstractContextManager:
        if not self._watching:
            return nullcontext()
        seed = mix(self._seed, self._place[RANK], self._place[WORKER])
        return self._watch.on(self._info, self._known.data, seed)

    def _start(self) -> None:
        while True:
            by = self.by
            self._draws.reseed(self._own_seed())
            with self._draws, nullcontext() if self._info is not None else self._watched():
                if self._epoch >= 0:
                    tell_epoch(self._known.data, self._epoch)
                data, sharded = self._sharded()
                stream = iter(data)
                first = list(islice(stream, 1))
            if quiet := self._several(self._before) - self._itself:
                # It asked in an earlier pass and has kept the answer.
                self._itself |= quiet
                self.by |= quiet
                self._draws.reseed(self._own_seed())
            # A part by `shard` that divides itself, too, as Hugging Face's: `shard` it less.
            if not sharded or self.by == by:
                break
        if self._watching and first:
            self._first = division.fingerprint(first[0])
        self.by |= sharded
        self._at_first = self.by
        self._mine = self._chosen(chain(first, stream))

    def _sharded(self) -> tuple[Any, frozenset[str]]:
        """The dataset or its `shard` for this reader, and what that divides it by."""
        data = self._known.data
        ours = self._several({RANK, WORKER}) - self.by
        if not ours or not hasattr(data, "shard"):
            return data, frozenset()
        part = division.shard(data, *self._number_among(ours))
        self._draws.reseed(self._own_seed(ours))
        return part, ours

    def _chosen(self, stream: Iterator[Any]) -> Iterator[Any]:
        """What of this stream is this reader's."""
        by, (index, count, block) = self.by, self._selection()
        for number, example in enumerate(stream):
            self._read += 1
            if self.by is not by:  # the dataset began to divide itself, with this example
                by, (index, count, block) = self.by, self._selection()
            if number // block % count == index:
                yield example

    def _selection(self) -> tuple[int, int, int]:
        """(index, count, block): of blocks of examples this reader keeps each count-th."""
        ours = self._several({RANK, WORKER}) - self.by
        index, count = self._number_among(ours)
        if ours == {RANK} and self._counts[WORKER] > 1:
            # Workers' streams end where they like: one example each keeps the ranks even.
            return (index + self._place[WORKER]) % count, count, 1
        return index, count, self._size

    def _on_division(self) -> None:
        """The dataset asked who reads it: from here on it divides, with its own random
        numbers."""
        new = self._several(self._watch.divides)
        if new - self._itself:
            self._late = self._reading
            self._itself |= new
            if not self._late:
                self._remembered |= new
            self.by |= new
            self._draws.reseed(self._own_seed())

    def _several(self, what: Iterable[str]) -> frozenset[str]:
        return frozenset(w for w in what if self._counts[w] > 1)

    def _number_among(self, ours: frozenset[str]) -> tuple[int, int]:
        """(which, of how many) this reader is among those of other ranks, workers or both.
        Ranks first: what is left over then falls on many ranks rather than on one."""
        index, count = 0, 1
        for what in (RANK, WORKER):
            if what in ours:
                index, count = index + self._place[what] * count, count * self._counts[what]
        return index, count

    def _own_seed(self, more: frozenset[str] = frozenset()) -> int:
        return mix(self._seed, *(self._place[w] + 1 if w in self.by | more else 0
                                 for w in (RANK, WORKER)))


class StreamData:
    """Training batches of an iterable dataset, for one rank.

    Ranks may have parts of different length: before each step all ranks agree on whether each
    has a whole step left, and the epoch ends for all when it ends for one. To know that without
    waiting, one step is read ahead and the question travels while the step before it computes.
    """

    def __init__(self, data: IterableDataset, *, micro: int, accumulate: int, rank: int,
                 ranks: int, workers: int, device: torch.device, collate: Callable, seed: int,
                 start_all_reduce_min: Callable[[int], Callable[[], int]],
                 gather: Callable[[bytes], list[bytes]] = lambda own: [own],
                 warn: Callable[[str], None] = lambda text: None,
                 watched: frozenset[str] = frozenset()) -> None:
        """`micro`: examples of one backward pass of this rank. `gather` brings all ranks' bytes
        to rank 0, `warn` says something to the person. `watched`: what the dataset was seen to
        divide itself by while it was made (`division.Watch.divides`).

        Raises UserError where the dataset's `divided_by` means nothing.
        """
        self._micro, self._accumulate, self._collate = micro, accumulate, collate
        self._rank, self._workers, self._seed, self._device = rank, max(workers, 1), seed, device
        self._start_all_reduce_min = start_all_reduce_min
        self._answer: Callable[[], int] | None = None
        known = division.known(data, rank, ranks, watched)
        self._reader = StreamReader(known, rank=rank, ranks=ranks, size=micro, collate=collate,
                                    seed=seed)
        self._loader = stream_loader(self._reader, workers, mix(seed, rank), device)
        self._reports = division.ReaderReports("the training stream", known, workers, gather, warn)
        self._compare = self._count = not known.sure and ranks * self._workers > 1

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Batches on the device, one a backward pass. A start within the epoch reads what comes
        before it again and throws it away."""
        self._reader.set_epoch(epoch)
        source = self._batches(epoch)
        for _ in range(start * self._accumulate):
            if next(source, None) is None:
                break
        steps = start
        step = self._whole_step(source)
        self._answer = self._start_all_reduce_min(int(step is not None))
        while self._answer():
            ahead = self._whole_step(source)
            self._answer = self._start_all_reduce_min(int(ahead is not None))
            for batch in step or ():
                yield move(batch, self._device)
            step = ahead
            steps += 1
            if self._compare and steps * self._accumulate >= self._workers:  # all have reported
                self._compare = False
                self._reports.compare()
        self._answer = None
        if self._compare:
            self._reports.compare()
        if self._count:
            self._reports.count()
        self._compare = self._count = False

    def _whole_step(self, source: Iterator[Any]) -> list[Any] | None:
        batches = list(islice(source, self._accumulate))
        return batches if len(batches) == self._accumulate else None

    def _batches(self, epoch: int) -> Iterator[Any]:
        """The workers' batches in turn, then those that what each had left over makes together."""
        rests = {}
        for item in explained(self._reader if self._loader is None else self._loader):
            self._reports.take(item.worker, item.report)
            if item.rest is None:
                yield pin(item.batch, self._device) if self._loader is None else item.batch
            else:
                rests[item.worker] = item.rest
        left = [x for _, rest in sorted(rests.items()) for x in pickle.loads(rest)]
        for at in range(0, len(left) - self._micro + 1, self._micro):
            with Draws(mix(self._seed, epoch, self._rank, at, _COLLATE + 1)):
                batch = self._collate(left[at:at + self._micro])
            yield pin(batch, self._device)


def explained(source: Iterable[StreamBatch]) -> Iterator[StreamBatch]:
    """Its items; WebDataset's refusal to be read by several ranks as the person's mistake that it
    is."""
    try:
        yield from source
    except ValueError as err:
        if "nodesplitter" not in str(err):
            raise
        raise UserError("several ranks read this WebDataset, and it does not say how they divide "
                        "it: give it nodesplitter=webdataset.split_by_node") from err


def stream_loader(reader: StreamReader, workers: int, seed: int,
                  device: torch.device) -> DataLoader | None:
    """Loader workers that stay over epochs, each a reader; None for none."""
    if not workers:
        return None
    return DataLoader(reader, batch_size=None, num_workers=workers, collate_fn=same,
                      pin_memory=device.type == "cuda", persistent_workers=True,
                      worker_init_fn=worker_init, multiprocessing_context="fork",
                      generator=torch.Generator().manual_seed(seed))


def _pickled(examples: list[Any]) -> bytes:
    """Examples as bytes of their own; none of them where they can't be pickled, as they may
    have been meant for `collate` alone."""
    try:
        return pickle.dumps(examples)
    except Exception:  # noqa: BLE001 - whatever a person's class raises
        return pickle.dumps([])
