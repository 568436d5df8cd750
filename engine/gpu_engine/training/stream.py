"""Reads iterable datasets so that each example is used once in an epoch.

A reader is one loader worker of a rank, or the rank itself if it has no workers. `division` finds
out how the dataset divides itself. Whatever it does not divide, the readers divide: each reads all
of the stream and keeps its part.

- A dataset that does not divide itself: blocks of one backward pass's examples are dealt out in
  turn, first over the ranks, then over the workers. So a step uses the same examples of the stream,
  however many workers there are.
- One that divides by worker: each worker's examples are dealt out over the ranks.
- One that divides by rank: blocks are dealt out over the rank's workers.
- One with a method `shard`: that method divides it.

Random numbers follow only from the seed, the epoch, and the reader's number within a division by
the dataset. Readers that share one stream draw the same numbers: otherwise each would see another
order, and examples would be read twice or never. Readers among which the dataset divides draw
different ones, from the moment it reads its rank or worker.
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
from gpu_engine.training.data import move, pin, tell_epoch, unchanged, worker_init
from gpu_engine.training.division import RANK, WORKER, KnownDivision
from gpu_engine.training.division_watch import Watch
from gpu_engine.training.reader_reports import ReaderReport, ReaderReports, fingerprint
from gpu_engine.training.rng import OwnRandomness, mix
from gpu_engine.worker.rank import loader_sockets

_COLLATE = 0xC011A7E


class StreamBatch(NamedTuple):
    """A batch from a reader, or the reader's last examples if they are too few for one."""

    number: int
    """Rises within each reader and differs between all readers. If the dataset does not divide
    itself, it is the position of the batch in the stream."""
    worker: int
    batch: Any
    rest: bytes | None
    """None if this is a batch; else the last examples, pickled, and `batch` is None."""
    report: str
    """The reader's report so far, from `ReaderReport.to_json`."""


class StreamReader(IterableDataset):
    """The part of a stream that one reader reads, in batches."""

    def __init__(self, known: KnownDivision, *, rank: int, ranks: int, size: int,
                 collate: Callable, seed: int, partial: bool = False) -> None:
        """`size`: examples in a batch; `partial`: the last batch may be smaller."""
        self._known, self._rank, self._ranks = known, rank, ranks
        self._size, self._collate, self._seed, self._partial = size, collate, seed, partial
        self._remembered: set[str] = set()
        # In shared memory, as the loader workers live over all epochs.
        self._epoch = multiprocessing.get_context("fork").RawValue(ctypes.c_int64, -1)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that readers tell the dataset of when they start the next pass."""
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
                with OwnRandomness(mix(self._seed, epoch, reader, batches, _COLLATE)):
                    batch = self._collate(examples)
                yield made(batch)
                batches += 1
        yield made(None, _pickled(examples))


class _Part:
    """One reader's pass over its part of a stream, example by example."""

    def __init__(self, known: KnownDivision, *, rank: int, ranks: int, worker: int, workers: int,
                 size: int, seed: int, epoch: int, info: Any, remembered: set[str]) -> None:
        """`remembered`: what the dataset was seen to divide itself by, before its first example, in
        earlier passes in this process. What this pass sees is added to it."""
        self._remembered, self._before = remembered, frozenset(remembered)
        self._known, self._size, self._info = known, size, info
        self._seed, self._epoch = mix(seed, epoch), epoch
        self._number = {RANK: rank, WORKER: worker}
        self._counts = {RANK: ranks, WORKER: workers}
        self._watch = Watch(self._on_division)
        self._watching = not known.sure and ranks * workers > 1
        self._reading = False
        self.by = self._itself = self._at_first = self._more_than_one(known.by)
        """What divides the stream already, without picking examples here."""
        self._late, self._first = False, None
        self._read = self._kept = 0
        self._draws = OwnRandomness(0)

    @property
    def report(self) -> ReaderReport:
        """The reader's report so far."""
        return ReaderReport(self._at_first, self._late, self._first, self._read, self._kept)

    def open(self) -> ExitStack:
        """Read the first example, to find out how the dataset divides itself. The caller closes
        what this returns after the last `take`; until then a loader worker is watched."""
        with ExitStack() as opening:
            if self._info is not None:
                opening.enter_context(self._watched())
            self._start()
            return opening.pop_all()

    def take(self, count: int) -> list[Any]:
        """The next `count` examples of this part; fewer at its end."""
        self._reading = True
        with self._draws, nullcontext() if self._info is not None else self._watched():
            found = list(islice(self._mine, count))
        self._reading = False
        self._kept += len(found)
        return found

    def _watched(self) -> AbstractContextManager:
        if not self._watching:
            return nullcontext()
        seed = mix(self._seed, self._number[RANK], self._number[WORKER])
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
            if quiet := self._more_than_one(self._before) - self._itself:
                # The dataset read its rank or worker in an earlier pass and kept the value.
                self._itself |= quiet
                self.by |= quiet
                self._draws.reseed(self._own_seed())
            # A shard may divide itself too, as Hugging Face's do: then `shard` into fewer parts.
            if not sharded or self.by == by:
                break
        if self._watching and first:
            self._first = fingerprint(first[0])
        self.by |= sharded
        self._at_first = self.by
        self._mine = self._chosen(chain(first, stream))

    def _sharded(self) -> tuple[Any, frozenset[str]]:
        """The dataset, or its `shard` for this reader, and what `shard` has divided it by."""
        data = self._known.data
        ours = self._more_than_one({RANK, WORKER}) - self.by
        if not ours or not hasattr(data, "shard"):
            return data, frozenset()
        part = division.shard(data, *self._number_among(ours))
        self._draws.reseed(self._own_seed(ours))
        return part, ours

    def _chosen(self, stream: Iterator[Any]) -> Iterator[Any]:
        """Those examples of `stream` that are for this reader."""
        by, (index, count, block) = self.by, self._selection()
        for number, example in enumerate(stream):
            self._read += 1
            if self.by is not by:  # the dataset has begun to divide itself at this example
                by, (index, count, block) = self.by, self._selection()
            if number // block % count == index:
                yield example

    def _selection(self) -> tuple[int, int, int]:
        """(index, count, block): of the blocks of `block` examples, this reader keeps every
        `count`-th, beginning with number `index`."""
        ours = self._more_than_one({RANK, WORKER}) - self.by
        index, count = self._number_among(ours)
        if ours == {RANK} and self._counts[WORKER] > 1:
            # The workers' streams may have any length: dealing single examples keeps ranks even.
            return (index + self._number[WORKER]) % count, count, 1
        return index, count, self._size

    def _on_division(self) -> None:
        """The dataset has read its rank or worker. From now on it counts as dividing itself, and
        this reader draws its own random numbers."""
        new = self._more_than_one(self._watch.divides)
        if new - self._itself:
            self._late = self._reading
            self._itself |= new
            if not self._late:
                self._remembered |= new
            self.by |= new
            self._draws.reseed(self._own_seed())

    def _more_than_one(self, what: Iterable[str]) -> frozenset[str]:
        return frozenset(w for w in what if self._counts[w] > 1)

    def _number_among(self, ours: frozenset[str]) -> tuple[int, int]:
        """(index, count) of this reader among those of the other ranks, workers or both (`ours`).
        Ranks come first, so that a remainder is spread over ranks and not left to one."""
        index, count = 0, 1
        for what in (RANK, WORKER):
            if what in ours:
                index, count = index + self._number[what] * count, count * self._counts[what]
        return index, count

    def _own_seed(self, more: frozenset[str] = frozenset()) -> int:
        return mix(self._seed, *(self._number[w] + 1 if w in self.by | more else 0
                                 for w in (RANK, WORKER)))


class StreamData:
    """Training batches of an iterable dataset, for one rank.

    The ranks' parts may differ in length. Before each step all ranks agree on whether each of them
    has enough for it; the epoch ends for all ranks as soon as one has not. One step is read ahead,
    so that this reduction runs while the step before computes.
    """

    begins_at_once = False
    """Readers begin anew with each epoch, and skip what a resumed run has had."""

    def __init__(self, data: IterableDataset, *, micro: int, accumulate: int, rank: int,
                 ranks: int, workers: int, device: torch.device, collate: Callable, seed: int,
                 start_all_reduce_min: Callable[[int], Callable[[], int]],
                 gather: Callable[[bytes], list[bytes]] = lambda own: [own],
                 warn: Callable[[str], None] = lambda text: None,
                 watched: frozenset[str] = frozenset()) -> None:
        """`micro`: examples in one backward pass of this rank. `gather` brings all ranks' bytes
        to rank 0; `warn` shows a sentence to the person. `watched`: what the dataset was seen to
        divide itself by while it was made (`Watch.divides`).

        Raises UserError if the dataset's `divided_by` has an unknown value.
        """
        self._micro, self._accumulate, self._collate = micro, accumulate, collate
        self._rank, self._workers, self._seed, self._device = rank, max(workers, 1), seed, device
        self._start_all_reduce_min = start_all_reduce_min
        self._answer: Callable[[], int] | None = None
        known = division.known_division(data, rank, ranks, watched)
        self._reader = StreamReader(known, rank=rank, ranks=ranks, size=micro, collate=collate,
                                    seed=seed)
        self._loader = stream_loader(self._reader, workers, mix(seed, rank), device)
        self._reports = ReaderReports("the training stream", known, workers, gather, warn)
        self._compare = self._count = not known.sure and ranks * self._workers > 1

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """The epoch's batches on the device, one for each backward pass, from step `start` on.
        What comes before `start` is read too, and thrown away."""
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
        """The workers' batches in turn, and then batches made of the examples that were left over
        in all workers."""
        rests = {}
        for item in with_clear_errors(self._reader if self._loader is None else self._loader):
            self._reports.take(item.worker, item.report)
            if item.rest is None:
                yield pin(item.batch, self._device) if self._loader is None else item.batch
            else:
                rests[item.worker] = item.rest
        left = [x for _, rest in sorted(rests.items()) for x in pickle.loads(rest)]
        for at in range(0, len(left) - self._micro + 1, self._micro):
            with OwnRandomness(mix(self._seed, epoch, self._rank, at, _COLLATE + 1)):
                batch = self._collate(left[at:at + self._micro])
            yield pin(batch, self._device)


def with_clear_errors(source: Iterable[StreamBatch]) -> Iterator[StreamBatch]:
    """The items of `source`. WebDataset's error about several ranks becomes a UserError that says
    what to do."""
    try:
        yield from source
    except ValueError as err:
        if "nodesplitter" not in str(err):
            raise
        raise UserError("several ranks read this WebDataset, and it does not say how they divide "
                        "it: give it nodesplitter=webdataset.split_by_node") from err


def stream_loader(reader: StreamReader, workers: int, seed: int,
                  device: torch.device) -> DataLoader | None:
    """A loader whose workers live over all epochs and are one reader each; None for no workers."""
    if not workers:
        return None
    loader_sockets.prepare()
    return DataLoader(reader, batch_size=None, num_workers=workers, collate_fn=unchanged,
                      pin_memory=device.type == "cuda", persistent_workers=True,
                      worker_init_fn=worker_init, multiprocessing_context="fork",
                      generator=torch.Generator().manual_seed(seed))


def _pickled(examples: list[Any]) -> bytes:
    """Examples as bytes. Examples that can't be pickled, and can only be collated, are left out."""
    try:
        return pickle.dumps(examples)
    except Exception:  # noqa: BLE001 - a person's class may raise anything
        return pickle.dumps([])
