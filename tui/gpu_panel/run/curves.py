"""Which lines a run's charts have, and their titles."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_engine.common.clean import clean
from gpu_panel.charts.curves import Line
from gpu_panel.charts.series import RankSeries
from gpu_panel.common import units
from gpu_panel.run.store import RunStore

MANY = 8
"""With more memory lines than this the chosen rank's and the fullest one's are drawn."""


def loss_series(store: RunStore, optimizer: int = 0) -> RankSeries:
    """The losses that an optimizer stepped on; 0 is the first, which most runs have alone."""
    return store.others[optimizer].loss if optimizer in store.others else store.loss


def loss_marks(store: RunStore, optimizer: int = 0) -> list[int]:
    """Where an attempt or, within a script's process, another training begins."""
    return [*store.begins.values(), *(() if optimizer in store.others
                                      else store.trainings.values())]


def loss_lines(store: RunStore, optimizer: int = 0) -> list[Line]:
    return [Line(i, f"rank {_label(store, rank)}", series)
            for i, (rank, series) in enumerate(loss_series(store, optimizer).ranks.items())]


def loss_title(store: RunStore, optimizer: int = 0) -> str:
    """ "loss ─ mean 1.832, ranks 1.79 to 1.88"; which optimizer's, where there are several."""
    if optimizer not in store.others:
        title = _loss_title([v.loss for v in store.ranks.values()])
        view = max(store.ranks.values(), key=lambda v: v.training or 0, default=None)
        if view is not None and view.training is not None:
            title += f" · training {view.training}, {clean(view.training_name or '?')}"
        return title + (" · optimizer 0 (o)" if store.others else "")
    values = [v.metrics.get(f"loss[{optimizer}]") for v in store.ranks.values()]
    return f"{_loss_title(values)} · {clean(store.others[optimizer].name)} (o)"


def _label(store: RunStore, rank: int) -> str:
    return store.ranks[rank].label if rank in store.ranks else str(rank)


def _loss_title(latest: Iterable[float | None]) -> str:
    values = [v for v in latest if v is not None]
    if not values:
        return "loss"
    if len(values) == 1:
        return f"loss ─ {units.loss(values[0])}"
    finite = [v for v in values if v - v == 0]
    if not finite:
        return "loss ─ NaN on all ranks"
    text = f"loss ─ mean {units.loss(sum(finite) / len(finite))}, " \
           f"ranks {units.loss(min(finite))} to {units.loss(max(finite))}"
    lost = len(values) - len(finite)
    return text + (f", {lost} not finite" if lost else "")


def memory_lines(store: RunStore, chosen: int | None) -> list[Line]:
    """GPUs: allocated, and faintly the peak, a device; on CPU the ranks' host memory."""
    memory, places = store.memory, {rank: i for i, rank in enumerate(store.ranks)}
    if not memory.allocated:
        lines = [Line(places.get(rank, 0), f"rank {rank}", series)
                 for rank, series in sorted(memory.rss.items())]
        return _fewer(lines, places.get(chosen))
    lines = []
    for (rank, device), series in sorted(memory.allocated.items()):
        alone = (rank, 1) not in memory.allocated
        name = f"rank {rank}" if alone else f"rank {rank} device {device}"
        index = places.get(rank, 0) if alone else device
        if (peak := memory.peak.get((rank, device))) is not None:
            lines.append(Line(index, f"{name} peak", peak, faint=True))
        lines.append(Line(index, name, series))
    return _fewer(lines, places.get(chosen))


def memory_title(store: RunStore) -> str:
    """ "memory ─ 28.1 GiB, peak 34.1": the fullest device's."""
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


def _fewer(lines: list[Line], chosen: int | None) -> list[Line]:
    if len(lines) <= 2 * MANY:
        return lines
    fullest = max(lines, key=lambda x: max(x.series.hi, default=0.0)).index
    return [x for x in lines if x.index in (chosen, fullest)]
