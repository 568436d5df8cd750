"""What the list knows about one run, as it is read in a thread and shown by the pane."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpu_engine.runs.summary import Asked

if TYPE_CHECKING:
    from gpu_engine.runs.folder import Run
    from gpu_engine.runs.sweep import Member
    from gpu_engine.sweep.track import Extent


@dataclass(frozen=True, slots=True)
class RunLine:
    """What the list knows about one run."""

    run: Run
    name: str
    """The name that a person gave it, else the one that it was started with."""
    mode: str
    world: int
    state: str
    live: bool
    created: float
    ended: float | None = None
    reason: str | None = None
    step: int | None = None
    total: int | None = None
    loss: float | None = None
    history: tuple[float, ...] = ()
    samples_per_s: float | None = None
    """Of a run that has ended: over its last steps."""
    steps_per_s: float | None = None
    seconds_left: float | None = None
    started: float | None = None
    devices: tuple[tuple[str, int], ...] = ()
    """(key of the device's row, rank) of a live run."""
    pids: tuple[tuple[int, int], ...] = ()
    """(pid, rank) of a live run's ranks on this machine."""
    still: str | None = None
    waits: bool = False
    """Whether it is in this machine's queue; then its reason says what it waits for."""
    job: bool = False
    """Whether it is a job of Slurm that can be asked about: its reason is no bad news."""
    warnings: tuple[str, ...] = ()
    odd: str | None = None
    preset: str = ""
    task: str = ""
    """The task's class as module:Class, or the command."""
    tags: tuple[str, ...] = ()
    note: str = ""
    seconds: float | None = None
    sweep: Member | None = None
    best: float | None = None
    """Of a member of a sweep that has ended: its best loss."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """The keys of its spec, and their values as text."""
    values: Mapping[str, Extent] = field(default_factory=dict)
    """How far each value that it has recorded has gone: only the last is known, unless a column
    needs more or it is live."""
    read: bool = True
    """Whether its events have been read; before, its figures are not known."""

    id: str = field(init=False, compare=False)
    """The run's id. Kept, as it is asked for thousands of times a second among a thousand runs."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", self.run.id)

    @property
    def asked(self) -> Asked:
        """What it can be found by."""
        return Asked.of(id=self.id, name=self.name, preset=self.preset, task=self.task,
                        mode=self.mode, state=self.state, tags=self.tags, note=self.note,
                        settings=self.settings)


@dataclass(frozen=True, slots=True)
class Pointed:
    """A run, a sweep, or the marked runs."""

    lines: tuple[RunLine, ...]
    sweep: str | None = None
    """Its id; None: these runs are of none, or stand for themselves."""

    @property
    def key(self) -> object:
        """The same for the same runs, whatever has become of them."""
        return self.sweep or frozenset(line.run.path for line in self.lines)
