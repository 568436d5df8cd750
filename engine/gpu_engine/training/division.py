"""Finds out whether an iterable dataset divides itself over ranks and loader workers.

PyTorch gives every loader worker a copy of an iterable dataset and leaves it to the dataset to
read only a part: with `get_worker_info()` in the documented pattern, or by rank and worker in
WebDataset's `split_by_node` and `split_by_worker`. A dataset that divides itself must not be
divided once more; any other one must be. The interface does not tell which kind a dataset is, so
it is watched until it gives its first example. If it reads its worker's number and the number of
workers, it divides by worker; if it reads its rank and the world size, it divides by rank. When
that rule is wrong, comparing the readers' first examples shows it (`doubts`).
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.utils.data._utils import worker as torch_worker

from gpu_engine.common.errors import UserError
from gpu_engine.training.data import tensor_bytes

RANK, WORKER = "rank", "worker"
_SAYS = {"nothing": frozenset(), "worker": frozenset({WORKER}), "rank": frozenset({RANK}),
         "rank and worker": frozenset({RANK, WORKER})}
_VARIABLES = {"RANK": "rank", "WORLD_SIZE": "ranks"}
_COUNTS = {"num_shards", "n_shards", "shards", "count", "num", "n", "total", "of", "world_size",
           "num_replicas", "num_workers", "num_parts"}
_INDEXES = {"index", "idx", "i", "shard_index", "shard_id", "shard_idx", "rank", "worker",
            "worker_id", "part"}

LATE = "it asked which rank or worker reads it only after its first example"


@dataclass(frozen=True)
class KnownDivision:
    """How a dataset divides itself, as far as it is known before reading it."""

    data: Any
    by: frozenset[str]
    """What it divides itself by: RANK, WORKER, both or neither."""
    sure: bool
    """Whether its author says so (`divided_by`), so that it need not be watched."""


def known_division(data: Any, rank: int, ranks: int, watched: frozenset[str] = frozenset()
                   ) -> KnownDivision:
    """What `data` divides itself by, according to its attribute `divided_by`, its library, or what
    was seen while the dataset was made (`watched`, from `Watch.divides`).

    Raises UserError if `divided_by` has an unknown value.
    """
    says = getattr(data, "divided_by", None)
    if says is not None:
        if says not in _SAYS:
            raise UserError(f"{type(data).__name__}.divided_by is {says!r}; it takes "
                            + ", ".join(f'"{word}"' for word in _SAYS))
        return KnownDivision(data, _SAYS[says], sure=True)
    if type(data).__module__.partition(".")[0] == "datasets" and hasattr(data, "_distributed"):
        # Hugging Face's datasets divide over loader workers by themselves, and over ranks once
        # they are told the rank.
        if ranks > 1 and data._distributed is None:
            library = importlib.import_module("datasets.distributed")  # part of the same library
            data = library.split_dataset_by_node(data, rank=rank, world_size=ranks)
        return KnownDivision(data, frozenset({RANK, WORKER}), sure=False)
    return KnownDivision(data, frozenset(watched), sure=False)


class Watch:
    """Notices, inside `with watch.on():`, when code reads which rank or worker this process is.

    It watches `get_worker_info()` (its `id` and `num_workers`), `get_rank` and `get_world_size` of
    `torch.distributed`, however they were imported, and the environment's RANK and WORLD_SIZE.
    """

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called whenever `divides` grows, at that very moment."""
        self._questions: set[str] = set()
        self._changed = changed
        self._pairs = {name: (getattr(dist, name), self._watched(getattr(dist, name), question))
                       for name, question in (("get_rank", "rank"), ("get_world_size", "ranks"))}
        self._held: list[tuple[Any, str, Callable, Callable]] = []
        self._modules = 0
        # Threads that run already read these values for other reasons. Threads that start later
        # are taken for the dataset's.
        self._others = {*threading.enumerate()} - {threading.current_thread()}

    @property
    def divides(self) -> frozenset[str]:
        """RANK if both the rank and the world size have been read, WORKER likewise. Code that reads
        only one of the two does not divide: it seeds, logs, or downloads on rank 0."""
        return frozenset(what for what in (RANK, WORKER) if {what, what + "s"} <= self._questions)

    def note(self, question: str) -> None:
        """Note that the calling thread has read the rank, the number of ranks, the worker or the
        number of workers: "rank", "ranks", "worker" or "workers"."""
        if threading.current_thread() in self._others:
            return
        before = self.divides
        self._questions.add(question)
        if self.divides != before:
            self._changed()

    @contextmanager
    def on(self, info: Any = None, dataset: Any = None, seed: int = 0) -> Iterator[Watch]:
        """Watch inside this context. In a loader worker, `info` is its own `get_worker_info()`;
        the dataset then sees `dataset` and `seed` in place of those in `info`."""
        with self._environment(), self._functions():
            if info is None:
                yield self
                return
            torch_worker._worker_info = _WatchedInfo(self, info, dataset, seed)
            try:
                yield self
            finally:
                torch_worker._worker_info = info

    @contextmanager
    def _environment(self) -> Iterator[None]:
        kind: Any = type(os.environ)  # Any: type checkers don't allow replacing methods
        read, keys = kind.__getitem__, kind.__iter__
        listed: set[str] = set()  # dict(os.environ) reads every variable: that does not count

        def watched_read(environ: Any, key: str) -> str:
            value = read(environ, key)
            if key in listed:
                listed.discard(key)
            elif key in _VARIABLES:
                self.note(_VARIABLES[key])
            return value

        def watched_keys(environ: Any) -> Iterator[str]:
            listed.update(_VARIABLES)
            return keys(environ)

        kind.__getitem__, kind.__iter__ = watched_read, watched_keys
        try:
            yield
        finally:
            kind.__getitem__, kind.__iter__ = read, keys

    @contextmanager
    def _functions(self) -> Iterator[None]:
        """Replace the functions in every module that imported them by name, except in torch's own
        modules, which call them all the time for other reasons."""
        self._find_functions()
        for module, name, _, watched in self._held:
            setattr(module, name, watched)
        try:
            yield
        finally:
            self._find_functions()  # modules imported meanwhile hold the replaced functions
            for module, name, original, _ in self._held:
                setattr(module, name, original)

    def _find_functions(self) -> None:
        if len(sys.modules) == self._modules:
            return
        self._modules = len(sys.modules)
        self._held = []
        for name, (original, watched) in self._pairs.items():
            for key, module in [("", dist), *sys.modules.copy().items()]:
                if key.partition(".")[0] != "torch" and getattr(
                        module, "__dict__", {}).get(name) in (original, watched):
                    self._held.append((module, name, original, watched))

    def _watched(self, original: Callable[..., int], question: str) -> Callable[..., int]:
        def watched(*args: Any, **named: Any) -> int:
            value = original(*args, **named)
            self.note(question)
            return value
        return watched


class _WatchedInfo:
    """What `get_worker_info()` returns to a dataset that is being watched."""

    def __init__(self, watch: Watch, info: Any, dataset: Any, seed: int) -> None:
        self._watch, self._info = watch, info
        self.dataset, self.seed = dataset, seed

    @property
    def id(self) -> int:
        self._watch.note("worker")
        return self._info.id

    @property
    def num_workers(self) -> int:
        self._watch.note("workers")
        return self._info.num_workers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._info, name)


def shard(data: Any, index: int, count: int) -> Any:
    """Call `data.shard` for part `index` of `count`. The names of its parameters decide their
    order: ours is (index, count), that of Hugging Face (num_shards, index)."""
    try:
        parameters = list(inspect.signature(data.shard).parameters.values())
    except (TypeError, ValueError):
        return data.shard(index, count)
    first, second = [*parameters, None, None][:2]
    if first is None or second is None or first.kind is first.VAR_POSITIONAL:
        return data.shard(index, count)
    turned = first.name in _COUNTS or second.name in _INDEXES
    values = (count, index) if turned else (index, count)
    if second.kind is second.POSITIONAL_ONLY:
        return data.shard(*values)
    if first.kind is first.POSITIONAL_ONLY:
        return data.shard(values[0], **{second.name: values[1]})
    return data.shard(**{first.name: values[0], second.name: values[1]})


@dataclass(frozen=True)
class ReaderReport:
    """What one reader (a loader worker, or a rank without any) reports of its stream."""

    by: frozenset[str]
    """What the dataset was taken to divide itself by."""
    late: bool
    """Whether it read its rank or worker for the first time after the first example."""
    first: str | None
    """`fingerprint` of the first example; None if there is none or it can't be compared."""
    read: int = 0
    """Examples read so far, including those that other readers keep."""
    kept: int = 0
    """How many of them this reader keeps."""
    ended: bool = False
    """Whether the stream has ended."""

    def to_json(self) -> str:
        """The form in which a loader worker sends it to its rank, and a rank to rank 0."""
        return json.dumps([sorted(self.by), self.late, self.first, self.read, self.kept,
                           self.ended])

    @classmethod
    def from_json(cls, text: str) -> ReaderReport:
        """The report that `to_json` wrote."""
        by, *rest = json.loads(text)
        return cls(frozenset(by), *rest)


def doubts(reports: list[list[ReaderReport]]) -> list[str]:
    """Signs that a stream was divided in the wrong way, as sentences; reports[rank][worker].

    Until a dataset reads its rank or worker, all readers draw the same random numbers. So readers
    among which it is not divided must begin with the same example.
    """
    everybody = [h for rank in reports for h in rank]
    if len({h.by for h in everybody}) > 1:
        return ["in some of its readers it asked which rank or worker reads it, in others not"]
    found = []
    if any(h.late for h in everybody):
        found.append(LATE)
    groups = {RANK: [list(g) for g in zip(*reports, strict=True)], WORKER: reports}
    for what, asks in ((RANK, "its rank and the world size"),
                       (WORKER, "its worker's number and how many there are")):
        firsts = [{h.first for h in group} for group in groups[what]
                  if len(group) > 1 and all(h.first is not None for h in group)]
        if what in everybody[0].by:
            if firsts and all(len(group) == 1 for group in firsts):
                found.append(f"it asked for {asks}, but its {what}s begin with the same example")
        elif any(len(group) > 1 for group in firsts):
            found.append(f"it did not ask for {asks}, but its {what}s begin with different "
                         "examples")
    return found


def miscounted(reports: list[list[ReaderReport]], length: int) -> str | None:
    """A sentence if the number of examples in an epoch does not fit the dataset's `length`; else
    None. Lengths are often estimates, so only half or twice as many count."""
    readers = [h for rank in reports for h in rank]
    kept = sum(h.kept for h in readers)
    # If the dataset divides by rank, its len() may be that of one rank's part.
    most = length * (len(reports) if RANK in readers[0].by else 1)
    if (kept * 2 <= length and all(h.ended for h in readers)) or kept >= 2 * most > 0:
        return f"its len() is {length}, but an epoch gave {kept} examples"
    return None


class ReaderReports:
    """Collects the reports of a stream's readers and warns of what they show."""

    def __init__(self, title: str, known: KnownDivision, workers: int,
                 gather: Callable[[bytes], list[bytes]], warn: Callable[[str], None]) -> None:
        """`title`: what warnings call the stream. `gather` brings all ranks' bytes to rank 0."""
        self._title, self._known, self._workers = title, known, max(workers, 1)
        self._gather, self._warn = gather, warn
        self._reported: dict[int, ReaderReport] = {}
        self._said: list[str] = []

    def take(self, worker: int, text: str) -> None:
        """Take the report of one of this rank's loader workers, from `ReaderReport.to_json`."""
        self._reported[worker] = ReaderReport.from_json(text)

    def compare(self) -> None:
        """Warn if the stream seems to be divided wrongly. All ranks call it together."""
        ranks = self._all()
        if ranks:
            self._say(doubts(ranks))

    def count(self) -> None:
        """After an epoch, warn if its counts show a wrong division; after any warning, also give
        the counts. All ranks call it together."""
        ranks = self._all()
        if not ranks:
            return
        found = [LATE] if any(h.late for rank in ranks for h in rank) else []
        with suppress(TypeError, NotImplementedError):  # most have no len()
            found += filter(None, [miscounted(ranks, len(self._known.data))])
        self._say(found)
        if self._said:
            readers = [reader for rank in ranks for reader in rank]
            read, kept = (", ".join(map(str, column)) for column in zip(
                *((r.read, r.kept) for r in readers), strict=True))
            self._warn(f"{self._title}: an epoch's {len(readers)} readers ({len(ranks)} ranks x "
                       f"{self._workers} workers) read {read} examples and used {kept} of them, "
                       f"{sum(r.kept for r in readers)} in all")

    def _say(self, found: list[str]) -> None:
        for doubt in found:
            if doubt not in self._said:
                self._said.append(doubt)
                self._warn(f"{self._title}: {doubt}. {_REMEDY}")

    def _all(self) -> list[list[ReaderReport]]:
        """All reports as [rank][worker] on rank 0; [] elsewhere."""
        nothing = ReaderReport(frozenset(), False, None)
        mine = [self._reported.get(w, nothing).to_json() for w in range(self._workers)]
        return [[ReaderReport.from_json(text) for text in json.loads(rank)]
                for rank in self._gather(json.dumps(mine).encode())]


_REMEDY = ("So examples may be left out or used more than once. Say how the dataset divides "
           'itself: give it an attribute `divided_by` = "nothing", "worker", "rank" or '
           '"rank and worker"')


def fingerprint(example: Any) -> str | None:
    """A text that is the same for equal examples in every process; None if it can't be made."""
    digest = hashlib.sha1(usedforsecurity=False)
    with suppress(Exception):
        _feed(digest.update, example)
        return digest.hexdigest()
    return None


def _feed(update: Callable[[bytes], None], part: Any) -> None:
    update(type(part).__name__.encode())
    if isinstance(part, Tensor):
        update(repr((part.shape, part.dtype)).encode() + tensor_bytes(part.detach().cpu()))
    elif isinstance(part, dict):
        for key, value in part.items():
            _feed(update, key)
            _feed(update, value)
    elif isinstance(part, list | tuple):
        for value in part:
            _feed(update, value)
    elif isinstance(part, str | int | float | bool | bytes | None):
        update(repr(part).encode())
    elif hasattr(part, "tobytes"):  # numpy's arrays, Pillow's images
        update(part.tobytes())
    else:
        update(pickle.dumps(part))
