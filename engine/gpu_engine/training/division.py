"""Whether an iterable dataset divides itself over ranks and loader workers, or we must.

PyTorch gives every loader worker a copy of an iterable dataset and leaves it to the dataset to
read a part of it: by `get_worker_info()` in its documented pattern, by rank and worker in
WebDataset's `split_by_node` and `split_by_worker`. What divides itself must not be divided again,
what doesn't must be. Nothing in the interface says which one a dataset is, so it's watched while
it gives its first example: one that asks for its worker's number and for how many there are
divides by worker, one that asks for its rank and for the world size divides by rank. What that
can miss shows when the readers' first examples are compared (`doubts`).
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
class Known:
    """What is known of a dataset before it is read."""

    data: Any
    by: frozenset[str]
    """What it divides itself by: RANK, WORKER, both or neither."""
    sure: bool
    """Its author said so: no need to look."""


def known(data: Any, rank: int, ranks: int, watched: frozenset[str] = frozenset()) -> Known:
    """`data`, and what it divides itself by as its attribute `divided_by` or its library says, or
    else as it was `watched` to do while it was made (see `Watch.divides`).

    Raises UserError for a `divided_by` that means nothing.
    """
    says = getattr(data, "divided_by", None)
    if says is not None:
        if says not in _SAYS:
            raise UserError(f"{type(data).__name__}.divided_by is {says!r}; it takes "
                            + ", ".join(f'"{word}"' for word in _SAYS))
        return Known(data, _SAYS[says], sure=True)
    if type(data).__module__.partition(".")[0] == "datasets" and hasattr(data, "_distributed"):
        # Hugging Face: over loader workers by itself, over ranks when told which it is.
        if ranks > 1 and data._distributed is None:
            library = importlib.import_module("datasets.distributed")  # there, as the data is
            data = library.split_dataset_by_node(data, rank=rank, world_size=ranks)
        return Known(data, frozenset({RANK, WORKER}), sure=False)
    return Known(data, frozenset(watched), sure=False)


class Watch:
    """Notices, inside `with`, when this process is asked which rank or worker it is.

    Asked are `get_worker_info()` (its `id` and `num_workers`), `torch.distributed`'s `get_rank`
    and `get_world_size`, and the environment's RANK and WORLD_SIZE, imported whichever way.
    """

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called, at that moment, when `divides` grows."""
        self._questions: set[str] = set()
        self._changed = changed
        self._pairs = {name: (getattr(dist, name), self._watched(getattr(dist, name), question))
                       for name, question in (("get_rank", "rank"), ("get_world_size", "ranks"))}
        self._held: list[tuple[Any, str, Callable, Callable]] = []
        self._modules = 0
        # Other threads of the rank ask for reasons of their own; those that the dataset starts from
        # here on ask for it.
        self._others = {*threading.enumerate()} - {threading.current_thread()}

    @property
    def divides(self) -> frozenset[str]:
        """RANK and WORKER, where the number and how many there are have both been asked for. One
        alone is for seeds, messages or rank 0's downloads."""
        return frozenset(what for what in (RANK, WORKER) if {what, what + "s"} <= self._questions)

    def note(self, question: str) -> None:
        """One of "rank", "ranks", "worker", "workers" was asked for, by the thread that calls."""
        if threading.current_thread() in self._others:
            return
        before = self.divides
        self._questions.add(question)
        if self.divides != before:
            self._changed()

    @contextmanager
    def on(self, info: Any = None, dataset: Any = None, seed: int = 0) -> Iterator[Watch]:
        """Watch. `info`: this loader worker's, in place of whose `dataset` and `seed` those
        given here are seen."""
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
        kind: Any = type(os.environ)  # its methods are replaced, which no type allows
        read, keys = kind.__getitem__, kind.__iter__
        listed: set[str] = set()  # dict(os.environ) reads them all, and asks nothing by that

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
        """Everywhere that a module imported them by name. Not in torch's own modules: they call
        each other all the time, and mean nothing by it."""
        self._find_functions()
        for module, name, _, watched in self._held:
            setattr(module, name, watched)
        try:
            yield
        finally:
            self._find_functions()  # what was imported meanwhile holds ours
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
    """What `get_worker_info()` gives to a dataset that is watched."""

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
    """`data.shard` for part `index` of `count`, by the names of its parameters: Task's are
    (index, count), Hugging Face's (num_shards, index)."""
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
    """What one reader (a loader worker of a rank) said of its stream."""

    by: frozenset[str]
    """What the dataset was taken to divide itself by."""
    late: bool
    """It asked for more only after its first example."""
    first: str | None
    """`fingerprint` of the first example; None for none, or one that can't be compared."""
    read: int = 0
    """Examples read so far, those for other readers too."""
    kept: int = 0
    """Of those, this reader's own."""
    ended: bool = False

    def to_json(self) -> str:
        """As a loader worker hands it to its rank, and a rank to rank 0."""
        return json.dumps([sorted(self.by), self.late, self.first, self.read, self.kept,
                           self.ended])

    @classmethod
    def from_json(cls, text: str) -> ReaderReport:
        """The report that `to_json` wrote."""
        by, *rest = json.loads(text)
        return cls(frozenset(by), *rest)


def doubts(reports: list[list[ReaderReport]]) -> list[str]:
    """What speaks against how a stream was divided, in words; reports[rank][worker].

    Before a dataset asks who reads it, all readers draw the same random numbers: so the streams
    of readers among which it isn't divided begin with the same example.
    """
    everybody = [h for rank in reports for h in rank]
    if len({h.by for h in everybody}) > 1:
        return ["some of its readers saw it ask which rank or worker reads it, others didn't"]
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
    """What an epoch's count says against a dataset of `length` examples, in words; None for
    nothing. Half or twice as many are meant: lengths are often estimates."""
    readers = [h for rank in reports for h in rank]
    kept = sum(h.kept for h in readers)
    most = length * (len(reports) if RANK in readers[0].by else 1)  # its len() may be a rank's
    if (kept * 2 <= length and all(h.ended for h in readers)) or kept >= 2 * most > 0:
        return f"its len() is {length}, but an epoch gave {kept} examples"
    return None


class ReaderReports:
    """What the readers of one stream say, on this rank, and what of it is said to the person."""

    def __init__(self, title: str, known: Known, workers: int,
                 gather: Callable[[bytes], list[bytes]], warn: Callable[[str], None]) -> None:
        """`title`: the stream, in words. `gather` brings all ranks' bytes to rank 0."""
        self._title, self._known, self._workers = title, known, max(workers, 1)
        self._gather, self._warn = gather, warn
        self._reported: dict[int, ReaderReport] = {}
        self._said: list[str] = []

    def take(self, worker: int, text: str) -> None:
        """`ReaderReport.to_json` of one of this rank's loader workers."""
        self._reported[worker] = ReaderReport.from_json(text)

    def compare(self) -> None:
        """Say what speaks against how the stream was divided. All ranks call it together."""
        ranks = self._all()
        if ranks:
            self._say(doubts(ranks))

    def count(self) -> None:
        """After an epoch: say what its counts speak against, and the counts where anything does.
        All ranks call it together."""
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
        """[rank][worker], on rank 0; [] elsewhere."""
        nothing = ReaderReport(frozenset(), False, None)
        mine = [self._reported.get(w, nothing).to_json() for w in range(self._workers)]
        return [[ReaderReport.from_json(text) for text in json.loads(rank)]
                for rank in self._gather(json.dumps(mine).encode())]


_REMEDY = ("If that is wrong, examples are left out or seen more than once: give the dataset an "
           'attribute `divided_by` = "nothing", "worker", "rank" or "rank and worker"')


def fingerprint(example: Any) -> str | None:
    """A text that is the same in every process for equal examples; None where there is none."""
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
