"""The second chart: the memory in use on the ranks' devices over time, or other curves."""

from __future__ import annotations

from gpu_panel.run import subjects
from gpu_panel.run.chart import ChartPane


class MemoryPane(ChartPane):
    """GiB over the time since the run began, until something else is chosen."""

    NAME = TITLE = "memory"
    FIRST = subjects.MEMORY
    BESIDE = True
    HELP = """What PyTorch has allocated on every device, or what c chooses; the dotted line is its
peak, the dashed one the card's capacity. On CPU slots, the memory of the ranks' processes."""
    DEFAULT_CSS = "MemoryPane { width: 38fr; }"
