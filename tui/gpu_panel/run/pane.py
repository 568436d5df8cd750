"""The base of all panes of the run screen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from textual.message import Message

from gpu_panel.common.panes import Pane
from gpu_panel.run.store import RunStore


@dataclass(frozen=True, slots=True)
class Moment:
    """What a pane needs for painting besides the store."""

    now: float
    """Unix seconds."""
    live: bool
    """Whether the run is live; also True before its state has been read."""
    rank: int | None
    """The chosen rank, which curves, table and log highlight; None before one is known."""


class RunPane(Pane):
    """A pane of the run screen, which paints what the store holds when the screen calls it."""

    @dataclass
    class RankChosen(Message):
        pane: RunPane
        rank: int

        def pass_on(self, panes: Iterable[RunPane]) -> int:
            """Tell the others of these panes, and nobody else. Returns the rank."""
            self.stop()
            for pane in panes:
                if pane is not self.pane:
                    pane.rank_chosen(self.rank)
            return self.rank

    def paint(self, store: RunStore, moment: Moment) -> None:
        """Show what is known now. It is called once a second, even while the pane is hidden, so
        it should draw only what has changed."""
        raise NotImplementedError

    def rank_chosen(self, rank: int) -> None:
        """Called when the person has chosen a rank in another pane."""

    def anew(self) -> None:
        """Forget what was painted, as the store of another run comes next."""
