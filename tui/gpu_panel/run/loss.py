"""The first chart: the loss of every rank over the steps, or other curves."""

from __future__ import annotations

from gpu_panel import keys
from gpu_panel.run import subjects
from gpu_panel.run.chart import ChartPane


class LossPane(ChartPane):
    """Its own keys work on the whole screen, as most people watch this chart."""

    NAME = TITLE = "loss"
    FIRST = subjects.LOSS
    KEYS = keys.of("chart", "loss")
    HELP = """The loss of every rank, step by step, or what c chooses; the chosen rank's line is
thick and on top. ┊ marks where an attempt or another training begins, ◆ an evaluation, ▪ a
checkpoint; × marks a value that is not finite."""
    DEFAULT_CSS = "LossPane { width: 62fr; }"

    def action_log_scale(self) -> None:
        """Switch between a logarithmic and a linear scale."""
        self.toggle_log()

    def action_smooth(self) -> None:
        """Use the next strength of smoothing."""
        self.cycle_smoothing()
