"""What the run screen asks of each of its panes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual.message import Message

from gpu_panel.common.panes import Pane
from gpu_panel.run.store import RunStore


@dataclass(frozen=True, slots=True)
class Moment:
    """What a pane is painted by, beside what is known of the run."""

    now: float
    """Unix seconds."""
    live: bool
    """Whether the run still goes on; True also until its state has been read."""
    rank: int | None
    """The chosen rank, which curves, table and log lift out; None before one is known."""


class RunPane(Pane):
    """A pane of the run screen. It paints what a store knows, when the screen says so."""

    DEFAULT_CLASSES = "framed"
    BESIDE: ClassVar[bool] = False
    """Whether it stands to the right of the pane before it, where there is room for all."""

    @dataclass
    class RankChosen(Message):
        """The person has chosen a rank in this pane."""

        pane: RunPane
        rank: int

    def on_mount(self) -> None:
        """The title in the frame, until `paint` says more there."""
        self.border_title = self.border_title or self.TITLE

    def paint(self, store: RunStore, moment: Moment) -> None:
        """Show what is known now. Called twice a second, whether the pane is seen or not: draw
        only what has changed."""
        raise NotImplementedError

    def rank_chosen(self, rank: int) -> None:
        """Another pane's `RankChosen`."""
