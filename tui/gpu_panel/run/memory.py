"""The memory pane: the memory in use on the ranks' devices over time; on CPU, the ranks' host
memory."""

from __future__ import annotations

from gpu_engine.common.units import GIB
from gpu_panel import keys
from gpu_panel.charts.axes import time_ticks
from gpu_panel.charts.curves import Curve, CurveView
from gpu_panel.common import units
from gpu_panel.run.pane import Moment, RunPane
from gpu_panel.run.store import RunStore

MANY = 8
"""With more than twice as many lines, only those of the chosen rank and of the fullest are drawn.
A device has two lines: allocated and peak."""


class MemoryPane(CurveView, RunPane):
    """The chart of memory: GiB over the seconds since the run began."""

    NAME = TITLE = "memory"
    KEYS = keys.of("chart")
    BESIDE = True
    HELP = """What PyTorch has allocated on every device; the faint line is its peak. On CPU slots,
the memory of the ranks' processes."""
    DEFAULT_CSS = "MemoryPane { width: 38fr; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, y_text=lambda v: units.gib(v) + " GiB", x_text=units.clock,
                         x_ticks=time_ticks, x_name="at", y_unit=GIB, zero=True,
                         empty="no figure yet")
        self._painted: object = None

    def paint(self, store: RunStore, moment: Moment) -> None:
        state = (store.version, moment.rank)
        if state == self._painted:
            return
        self._painted = state
        self.show(memory_lines(store, moment.rank), None, moment.rank)
        self.entitle(memory_title(store))


def memory_lines(store: RunStore, chosen: int | None) -> list[Curve]:
    """For each GPU, a line with the allocated memory and a faint one with its peak; on CPU, the
    host memory of each rank."""
    memory, places = store.memory, {rank: i for i, rank in enumerate(store.ranks)}
    lifted = None if chosen is None else places.get(chosen)
    if not memory.allocated:
        lines = [Curve(places.get(rank, 0), f"rank {rank}", series)
                 for rank, series in sorted(memory.rss.items())]
        return _fewer(lines, lifted)
    lines = []
    for (rank, device), series in sorted(memory.allocated.items()):
        alone = (rank, 1) not in memory.allocated
        name = f"rank {rank}" if alone else f"rank {rank} device {device}"
        index = places.get(rank, 0) if alone else device
        if (peak := memory.peak.get((rank, device))) is not None:
            lines.append(Curve(index, f"{name} peak", peak, faint=True))
        lines.append(Curve(index, name, series))
    return _fewer(lines, lifted)


def memory_title(store: RunStore) -> str:
    """ "memory ─ 28.1 GiB, peak 34.1", the figures of the fullest device."""
    views = list(store.ranks.values())
    allocated = [b for v in views for b in v.gpu_allocated if b is not None]
    peak = [b for v in views for b in v.gpu_peak if b is not None]
    if allocated:
        return f"memory ─ {units.gib(max(allocated))} GiB" \
               + (f", peak {units.gib(max(peak))}" if peak else "")
    rss = [v.rss for v in views if v.rss is not None]
    if not rss:
        return "memory"
    of = " a rank" if len(rss) > 1 else ""
    return f"host memory ─ {units.gib(max(rss))} GiB{of}"


def _fewer(lines: list[Curve], chosen: int | None) -> list[Curve]:
    if len(lines) <= 2 * MANY:
        return lines
    fullest = max(lines, key=lambda x: max(x.series.hi, default=0.0)).index
    return [x for x in lines if x.index in (chosen, fullest)]
