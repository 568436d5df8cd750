"""What a chart of the run screen can show: everything that the run has recorded, by name.

Pure: made from a store. Names from files go through `clean`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from gpu_engine.common import units
from gpu_engine.common.clean import clean
from gpu_engine.common.series import Series
from gpu_engine.common.ticks import time_ticks
from gpu_engine.common.units import GIB
from gpu_panel.charts.axes import Axes
from gpu_panel.charts.curves import Curve
from gpu_panel.run import devices, recorded
from gpu_panel.run.recorded import RankValues
from gpu_panel.run.store import RunStore

LOSS, MEMORY = "loss", "memory"
"""The keys of what the two charts show at first."""
OTHER = "loss:"
"""Begins the keys of the losses of optimizers after the first."""
APART = 30.0
"""Seconds between two figures of memory from which nothing is known between them."""


@dataclass(frozen=True, slots=True)
class Subject:
    key: str
    name: str
    """For people, without control characters."""
    group: str
    """What kind of value it is, for the list."""
    axes: Axes
    lines: Callable[[RunStore], list[Curve]]
    title: Callable[[RunStore], str]
    """"loss ─ mean 1.832, ranks 1.79 to 1.88"."""
    by_time: bool = False
    """Whether x is seconds since the run began, not steps."""
    over_all: Callable[[RunStore], Series | None] = lambda store: None
    """The series over all lines, if one is kept."""


_TIME = Axes(x_text=units.clock, x_ticks=time_ticks, x_name="at", x_gap=APART)
_BYTES = replace(_TIME, y_text=lambda v: units.gib(v) + " GiB", y_unit=GIB, unit="GiB", zero=True,
                 empty="no figure yet")
_STEPS: Mapping[str, Axes] = {
    recorded.LR: Axes(y_text=lambda v: units.UNKNOWN if v is None else f"{v:.3g}"),
    recorded.SAMPLES: Axes(y_text=units.rate, unit="/s", zero=True),
    recorded.STEPS: Axes(y_text=units.rate, unit="/s", zero=True),
    recorded.WAIT: Axes(y_text=units.share, y_unit=0.01, unit="%", zero=True),
}


def find(store: RunStore, key: str) -> Subject | None:
    """What this key means in this run; None if the run has recorded no such thing (yet)."""
    if key == LOSS:
        return _LOSS
    if key == MEMORY:
        return _MEMORY
    if key.startswith(OTHER):
        index = key.removeprefix(OTHER)
        known = index.isdecimal() and int(index) in store.others
        return _of_optimizer(store, int(index)) if known else None
    if key in _TIMED:
        found = _TIMED[key]
        return found if found.lines(store) else None
    values = store.recorded.values.get(key)
    return _of_values(key) if values is not None else None


def every(store: RunStore) -> list[Subject]:
    """Everything of this run that can be drawn now: training, evaluations, devices."""
    keys = store.recorded.values
    own = [k for k in recorded.NAMES if k in keys]
    named = sorted((k for k in keys if k not in recorded.NAMES),
                   key=lambda k: (not k.startswith(recorded.EVALUATED), k))
    wanted = [LOSS, *(f"{OTHER}{i}" for i in store.others), *own, *named, MEMORY, *_TIMED]
    twice = {"host"} if not store.memory.allocated else set()  # on CPU slots, that is MEMORY
    return [s for s in (find(store, key) for key in wanted) if s is not None and s.key not in twice]


# --- the loss -----------------------------------------------------------------------------------


def _of_ranks(store: RunStore, each: Mapping[int, Series]) -> list[Curve]:
    """A curve for each rank that has a series."""
    places = _places(store)
    return [Curve(places.get(rank, 0), _of_rank(store, rank), series)
            for rank, series in each.items()]


def _loss_title(store: RunStore) -> str:
    title = summary("loss", [v.loss for v in store.ranks.values()])
    view = max(store.ranks.values(), key=lambda v: v.training or 0, default=None)
    if view is not None and view.training is not None:
        title += f" · training {view.training}, {clean(view.training_name or '?', 40)}"
    return title


def _of_optimizer(store: RunStore, index: int) -> Subject:
    name = f"loss of {clean(store.others[index].name, 40)}"
    return Subject(
        f"{OTHER}{index}", name, "training", _LOSS.axes,
        lambda s: _of_ranks(s, s.others[index].loss.ranks),
        lambda s: summary(name, [v.metrics.get(f"loss[{index}]") for v in s.ranks.values()]),
        over_all=lambda s: s.others[index].loss.all)


# --- values by name -----------------------------------------------------------------------------


def _of_values(key: str) -> Subject:
    name, axes = recorded.shown_name(key), _STEPS.get(key, Axes())
    group = "training" if key in recorded.NAMES else \
        "evaluation" if key.startswith(recorded.EVALUATED) else "logged"
    total = key == recorded.SAMPLES

    def values(store: RunStore) -> RankValues:
        return store.recorded.values.get(key, RankValues())  # a store of another run has others

    return Subject(key, name, group, axes, lambda s: _of_ranks(s, values(s).ranks),
                   lambda s: summary(name, values(s).latest.values(), axes.y_text, total=total))


# --- memory -------------------------------------------------------------------------------------


def _memory(store: RunStore) -> list[Curve]:
    """For each GPU, a line with the allocated memory and a faint one with its peak; on CPU, the
    host memory of each rank."""
    memory = store.memory
    if not memory.allocated:
        return _host_memory(store)
    peaks = [replace(line, label=line.label + " peak", faint=True)
             for line in _of_devices(store, memory.peak)]
    return [*peaks, *_of_devices(store, memory.allocated)]


def _of_devices(store: RunStore, each: Mapping[tuple[int, int], Series]) -> list[Curve]:
    places = _places(store)
    found = []
    for (rank, device), series in sorted(each.items()):
        alone = (rank, 1) not in each
        name = _of_rank(store, rank) + ("" if alone else f" device {device}")
        found.append(Curve(places.get(rank, 0) if alone else device, name, series))
    return found


def _host_memory(store: RunStore) -> list[Curve]:
    return _of_ranks(store, dict(sorted(store.memory.rss.items())))


def _memory_title(store: RunStore) -> str:
    """ "memory ─ 28.1 of 80 GiB, peak 34.1", the figures of the fullest device."""
    views = list(store.ranks.values())
    allocated = [b for v in views for b in v.gpu_allocated if b is not None]
    peak = [b for v in views for b in v.gpu_peak if b is not None]
    if allocated:
        sizes = {d.memory for r in (store.plan.ranks if store.plan is not None else ())
                 for d in r.devices if d.memory}
        of = f" of {units.gib(min(sizes))}" if sizes else ""
        return f"memory ─ {units.gib(max(allocated))}{of} GiB" \
            + (f", peak {units.gib(max(peak))}" if peak else "")
    return "memory" if all(v.rss is None for v in views) else _host_title(store)


def _host_title(store: RunStore) -> str:
    rss = [v.rss for v in store.ranks.values() if v.rss is not None]
    if not rss:
        return "host memory"
    return f"host memory ─ {units.gib(max(rss))} GiB{' a rank' if len(rss) > 1 else ''}"


def _reserved_title(store: RunStore) -> str:
    held = [b for v in store.ranks.values() for b in v.gpu_reserved if b is not None]
    return f"reserved memory ─ {units.gib(max(held))} GiB" if held else "reserved memory"


# --- devices ------------------------------------------------------------------------------------


def _device_subject(kind: str, name: str, axes: Axes) -> Subject:
    def lines(store: RunStore) -> list[Curve]:
        labels, places = devices.labels_of(store.plan), _places(store)
        # A device has the colour of its rank, or of its number if a rank has several.
        colours = {key: i if len(keys) > 1 else places.get(rank, 0)
                   for rank, keys in devices.keys_of(store.plan).items()
                   for i, key in enumerate(keys)}
        return [Curve(colours.get(key, i), labels.get(key, f"device {clean(key[1], 16)}"), series)
                for i, (key, series) in enumerate(store.devices.curves.get(kind, {}).items())]

    def title(store: RunStore) -> str:
        latest = [figures.get(kind) for _, figures in store.devices.latest.values()]
        return summary(name, latest, axes.y_text, each="devices")

    return Subject(kind, name, "device", axes, lines, title, by_time=True)


_SHARE = replace(_TIME, y_text=units.share, y_unit=0.01, unit="%", zero=True)
_WATTS = replace(_TIME, y_text=lambda v: units.UNKNOWN if v is None else f"{v:.0f} W", unit="W",
                 zero=True)
_DEGREES = replace(_TIME, y_text=lambda v: units.UNKNOWN if v is None else f"{v:.0f} °C",
                   unit="°C")
_LOSS = Subject(LOSS, "loss", "training", Axes(empty="no step yet", may_be_log=True),
                lambda s: _of_ranks(s, s.loss.ranks), _loss_title, over_all=lambda s: s.loss.all)
_MEMORY = Subject(MEMORY, "memory", "memory", _BYTES, _memory, _memory_title, by_time=True,
                  over_all=lambda s: s.memory.all_allocated if s.memory.allocated
                  else s.memory.all_rss)
_TIMED: Mapping[str, Subject] = {s.key: s for s in (
    Subject("reserved", "reserved memory", "memory", _BYTES,
            lambda s: _of_devices(s, s.memory.reserved), _reserved_title, by_time=True),
    Subject("host", "host memory", "memory", _BYTES, _host_memory, _host_title, by_time=True,
            over_all=lambda s: s.memory.all_rss),
    _device_subject(devices.UTILIZATION, "utilisation", _SHARE),
    _device_subject(devices.POWER, "power", _WATTS),
    _device_subject(devices.TEMPERATURE, "temperature", _DEGREES),
    _device_subject(devices.USED, "memory of all processes", _BYTES),
)}


# --- texts --------------------------------------------------------------------------------------


def summary(name: str, latest: Iterable[float | None],
            text: Callable[[float | None], str] = units.loss, *, total: bool = False,
            each: str = "ranks") -> str:
    """ "loss ─ mean 1.832, ranks 1.79 to 1.88"; one value: "loss ─ 1.832". `total`: their sum in
    place of the mean. `each`: what has a value."""
    values = [v for v in latest if v is not None]
    if not values:
        return name
    if len(values) == 1:
        return f"{name} ─ {text(values[0])}"
    finite = [v for v in values if v - v == 0]
    if not finite:
        return f"{name} ─ NaN on all {each}"
    whole = f"{text(sum(finite))} in all" if total else f"mean {text(sum(finite) / len(finite))}"
    lost = len(values) - len(finite)
    if not lost and not total and text(min(finite)) == text(max(finite)):
        return f"{name} ─ {text(finite[0])} on all {each}"
    return f"{name} ─ {whole}, {each} {text(min(finite))} to {text(max(finite))}" \
        + (f", {lost} not finite" if lost else "")


def _places(store: RunStore) -> dict[int, int]:
    """Rank → its position among the ranks, which decides its colour."""
    return {rank: i for i, rank in enumerate(store.ranks)}


def _of_rank(store: RunStore, rank: int) -> str:
    return f"rank {store.ranks[rank].label if rank in store.ranks else rank}"
