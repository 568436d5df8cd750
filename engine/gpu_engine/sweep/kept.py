"""What a search asks with, in a file of the queue's folder as long as there is more to ask: what
each member is made of. What was tried is in the members' own folders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_engine.common.errors import telling
from gpu_engine.common.files import json_inside, write_json_inside
from gpu_engine.common.records import UnixTime, Whole, find_record
from gpu_engine.runs import waiting
from gpu_engine.spec.schema import RunSpec
from gpu_engine.spec.write import to_dict
from gpu_engine.sweep import grid

if TYPE_CHECKING:
    from gpu_engine.queue.submit import Submission
    from gpu_engine.queue.turns import When

HOW = "tpe"


@dataclass(frozen=True, slots=True)
class Search:
    """What is asked for, and what a member is made of."""

    spec: dict[str, Any]
    """As a nested dict, for `from_dict`."""
    axes: dict[str, str]
    """Each key that varies → what its values are taken from, as typed for `--grid`."""
    tries: Whole
    repeat: Whole
    how: str = HOW
    refused: tuple[tuple[str, ...], ...] = ()
    """Combinations with which no member can run."""
    why: str | None = None
    """Why nothing is asked for at the moment."""
    base: tuple[str, dict[str, Any]] | None = None
    begun: UnixTime = 0.0
    folder: str = ""
    """Where it was submitted; `code` and `root` are those of `Kept`."""
    code: str | None = None
    root: str | None = None
    after: str | None = None
    begin: UnixTime | None = None
    priority: int = 0
    tags: tuple[str, ...] = ()

    @property
    def of(self) -> int:
        """How many members it is to have."""
        return self.tries * self.repeat

    @property
    def parsed(self) -> list[grid.Axis]:
        """Its axes."""
        return [grid.parse(f"{key}={text}") for key, text in self.axes.items()]

    def told(self) -> dict[str, str]:
        """The axes as people may see them."""
        return grid.told(self.parsed)

    def typed(self, texts: Iterable[str]) -> list[str]:
        """Values as people see them, as they were typed."""
        return [next((v for v in axis.values if grid.shown(axis, v) == text), text)
                for axis, text in zip(self.parsed, texts, strict=True)]

    def submitted(self, when: When, prepared: Submission, begun: float, tags: Sequence[str],
                  base: tuple[str, RunSpec] | None) -> Search:
        """With what is known once its first member is submitted."""
        return replace(
            self, base=None if base is None else (base[0], to_dict(base[1], defaults=False)),
            begun=begun, folder=str(prepared.folder), code=prepared.kept.name,
            root=prepared.kept.root, after=when.after, begin=when.begin, priority=when.priority,
            tags=tuple(tags))

    def keep(self, queue: Path, sweep: str) -> None:
        """Write down that there is more to ask. Raises UserError."""
        path = waiting.search_file(queue, sweep)
        with telling(f"{path}: can't be written"):
            write_json_inside(path.parent, path.name, asdict(self))


def asks(queue: Path, sweep: str) -> bool:
    """Whether this sweep is a search that asks for more, if need be by a process that is yet to be
    started."""
    search = read(queue, sweep)
    return search is not None and search.why is None


def _stopped(queue: Path, sweep: str) -> Path:
    return waiting.search_file(queue, sweep).with_suffix(".stopped")


def is_stopped(queue: Path, sweep: str) -> bool:
    """Whether this is a search that somebody has stopped before it had asked for all."""
    return _stopped(queue, sweep).exists()


def stop(queue: Path, sweep: str) -> bool:
    """Have nothing more asked for. Returns whether there was more to ask."""
    return _moved(waiting.search_file(queue, sweep), _stopped(queue, sweep))


def go_on(queue: Path, sweep: str) -> bool:
    """Have a stopped search ask again. Returns whether it was one."""
    return _moved(_stopped(queue, sweep), waiting.search_file(queue, sweep))


def _moved(file: Path, to: Path) -> bool:
    try:
        file.replace(to)
    except OSError:
        return False
    return True


def read(queue: Path, sweep: str) -> Search | None:
    """The search that this sweep is; None if it is none, or there is nothing more to ask."""
    path = waiting.search_file(queue, sweep)
    return find_record(Search, json_inside(path.parent, path.name))
