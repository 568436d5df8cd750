"""What has been read of one sweep: its members and their figures."""

from __future__ import annotations

from typing import NamedTuple

from gpu_engine.sweep.figures import FiguresOf
from gpu_engine.sweep.group import Group, default_by, find, read
from gpu_engine.sweep.table import By, One


class Gathered(NamedTuple):
    group: Group
    members: list[One]
    by: By
    """The value that decides unless a person says otherwise."""


class SweepStore:
    """Reads a sweep and remembers what it has read of members that have ended."""

    def __init__(self, sweep: str) -> None:
        self.sweep = sweep
        self._figures = FiguresOf()
        self.last: Gathered | None = None

    def gather(self) -> Gathered:
        """The members as they are now. Blocks. Raises UserError if the sweep is gone."""
        before = self.last
        group = before.group if before is not None else find(self.sweep)
        members = read(group, self._figures.read)
        by = before.by if before is not None else default_by(group, members)
        self.last = Gathered(group, members, by)
        return self.last
