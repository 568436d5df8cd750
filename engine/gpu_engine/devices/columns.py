"""What is said of a device: a row for each figure. The panel's table and its details show them, and
so does `gpu-engine devices`. Pure.

A colour never stands alone: the figure is beside it. Temperatures: NVIDIA's data-centre cards slow
down from 85 to 90 °C on (`nvidia-smi -q -d TEMPERATURE`, "GPU Slowdown Temp").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpu_engine.common import units
from gpu_engine.common.units import UNKNOWN
from gpu_engine.devices.records import Sample

NEARLY_FULL, FULL = 0.90, 0.97
"""The shares of memory from which the next allocation may fail, and from which it will."""
WARM, HOT = 75.0, 85.0
"""Degrees Celsius."""
AT_LIMIT = 0.99
"""The share of its power limit at which a card is held back by it."""


def _plain(sample: Sample) -> str:
    return ""


@dataclass(frozen=True)
class Column:
    """One figure of a device."""

    name: str
    """What it is called in the details."""
    title: str
    """Its head in a table; "": only the details show it."""
    width: int
    """The cells that its figure has in a table at least."""
    of: Callable[[Sample], str]
    """The figure with its unit; a dash for what the driver does not report."""
    style: Callable[[Sample], str] = _plain
    """"" for a figure that is no news, "warn" or "bad" for trouble."""
    bare: Callable[[Sample], str] | None = None
    """The figure below its head, which names the unit; None: as `of`. "": the device has none."""
    bar: Callable[[Sample], float | None] | None = None
    """The share, 0 to 1, for a bar beside the figure."""


def memory_share(sample: Sample) -> float | None:
    """The share of its memory that is used, 0 to 1."""
    total = sample.memory_total or sample.device.memory_total
    return sample.memory_used / total if sample.memory_used is not None and total else None


def _memory(sample: Sample) -> str:
    """Used and all memory in GiB: "34/80G", with a decimal below ten: "4.1/8.0G"."""
    if sample.memory_is_hosts:
        return "machine's"
    total = sample.memory_total or sample.device.memory_total
    return "/".join([_size(sample.memory_used), *([_size(total)] if total else [])]) + "G"


def _size(count: int | None) -> str:
    if count is None:
        return UNKNOWN
    value = count / units.GIB
    return f"{value:.0f}" if value >= 9.95 or value == 0 else f"{value:.1f}"


def _graded(value: float | None, warn: float, bad: float) -> str:
    """The style of a value that is trouble from `warn` and from `bad` on."""
    return "" if value is None or value < warn else "bad" if value >= bad else "warn"


def _power_style(sample: Sample) -> str:
    held = sample.power is not None and sample.power_limit \
        and sample.power >= sample.power_limit * AT_LIMIT
    return "warn" if held else ""


def _with(value: float | None, unit: str) -> str:
    return UNKNOWN if value is None else f"{value:,.0f}{unit}"


def _clock(now: int | None, most: int | None) -> str:
    """Of Hz: "1,410 of 1,410 MHz"."""
    first, last = (UNKNOWN if hertz is None else f"{hertz / 1e6:,.0f}" for hertz in (now, most))
    return f"{first} of {last} MHz"


TEMPERATURE = Column("temperature", "°C", 2, lambda s: _with(s.temperature, "°C"),
                     lambda s: _graded(s.temperature, WARM, HOT),
                     lambda s: _with(s.temperature, ""))

COLUMNS: tuple[Column, ...] = (
    Column("utilisation", "util", 5, lambda s: units.share(s.utilization),
           bar=lambda s: s.utilization),
    # The memory of CPU slots is the machine's, which is no slot's figure.
    Column("memory", "memory", 8, _memory, lambda s: _graded(memory_share(s), NEARLY_FULL, FULL),
           lambda s: "" if s.device.is_cpu else _memory(s), memory_share),
    TEMPERATURE,
    Column("power", "W", 3, lambda s: _with(s.power, "W"), _power_style,
           lambda s: _with(s.power, "")),
    Column("power limit", "", 0, lambda s: _with(s.power_limit, "W")),
    Column("reserved", "", 0, lambda s: f"{units.gib(s.memory_reserved)} GiB"),
    Column("fan", "", 0, lambda s: units.share(s.fan)),
    Column("performance", "", 0, lambda s: UNKNOWN if s.performance_state is None
           else f"P{s.performance_state}"),
    Column("SM clock", "", 0, lambda s: _clock(s.clock_sm, s.clock_sm_max)),
    Column("memory clock", "", 0, lambda s: _clock(s.clock_memory, s.clock_memory_max)),
    Column("bandwidth", "", 0, lambda s: f"memory busy {units.share(s.memory_utilization)}"),
    Column("slowed by", "", 0, lambda s: UNKNOWN if s.throttle is None
           else ", ".join(s.throttle) or "nothing", lambda s: "warn" if s.throttle else ""),
    Column("PCIe", "", 0, lambda s: f"gen {_with(s.pcie_generation, '')} "
                                    f"×{_with(s.pcie_width, '')}"),
    Column("ECC errors", "", 0, lambda s: f"{_with(s.ecc_corrected, '')} corrected, "
                                          f"{_with(s.ecc_uncorrected, '')} not",
           lambda s: "bad" if s.ecc_uncorrected else ""),
    Column("persistence", "", 0, lambda s: UNKNOWN if s.persistence is None
           else "on" if s.persistence else "off"),
    Column("compute mode", "", 0, lambda s: s.compute_mode or UNKNOWN),
    Column("MIG", "", 0, lambda s: f"a slice of GPU {s.device.index}" if s.device.is_slice
           else "not sliced"),
)
"""In the order in which they are shown. Their texts may hold what a driver says: clean them."""

IN_TABLE = tuple(column for column in COLUMNS if column.title)
