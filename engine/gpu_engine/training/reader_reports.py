"""The reports of a stream's readers, and the signs in them that its examples were divided wrongly
among the readers."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gpu_engine.training.data import tensor_bytes
from gpu_engine.training.division import RANK, WORKER, KnownDivision

LATE = "it asked which rank or worker reads it only after its first example"
_REMEDY = ("So examples may be left out or used more than once. Say how the dataset divides "
           'itself: give it an attribute `divided_by` = "nothing", "worker", "rank" or '
           '"rank and worker"')


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
        return ["it asked which rank or worker reads it in some of its readers, but not in all"]
    found = []
    if any(h.late for h in everybody):
        found.append(LATE)
    groups = {RANK: [list(g) for g in zip(*reports)], WORKER: reports}
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
                *((r.read, r.kept) for r in readers)))
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
    elif isinstance(part, (list, tuple)):
        for value in part:
            _feed(update, value)
    elif isinstance(part, (str, int, float, bool, bytes, type(None))):
        update(repr(part).encode())
    elif hasattr(part, "tobytes"):  # numpy's arrays, Pillow's images
        update(part.tobytes())
    else:
        update(pickle.dumps(part))
