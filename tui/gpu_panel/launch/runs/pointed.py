"""What the cursor of the list points at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpu_panel.launch.runs.line import RunLine


@dataclass(frozen=True, slots=True)
class Pointed:
    """A run, a sweep, or the marked runs."""

    lines: tuple[RunLine, ...]
    sweep: str | None = None
    """The id of the sweep whose runs they are; None: they are of none, or each stands for itself.
    """

    @property
    def key(self) -> object:
        """The same for the same runs, whatever has become of them."""
        return self.sweep or frozenset(line.run.path for line in self.lines)
