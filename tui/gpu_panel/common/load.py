"""From which load, fill, heat and power a figure is coloured. Pure.

The colour never stands alone: the number is beside it. Temperatures: NVIDIA's data-centre cards
slow down from 85 to 90 °C on (`nvidia-smi -q -d TEMPERATURE`, "GPU Slowdown Temp").
"""

from __future__ import annotations

IDLE_BELOW = 0.10
"""The share of time below which a device counts as idle, as the engine has it (availability)."""
BUSY = 0.75
"""The share of time from which a device counts as busy: what one wants of it in a training."""
NEARLY_FULL, FULL = 0.90, 0.97
"""The shares of memory from which the next allocation may fail, and from which it will."""
WARM, HOT = 75.0, 85.0
"""Degrees Celsius."""
AT_LIMIT = 0.99
"""The share of its power limit at which a card is held back by it."""


LEVELS = ("idle", "moderate", "heavy")


def level(share: float | None) -> str:
    """How busy a device is by its utilisation, 0 to 1: one of LEVELS."""
    return LEVELS[sum((share or 0.0) >= least for least in (IDLE_BELOW, BUSY))]


def shade(share: float) -> int:
    """0 to 3: idle, up to the middle, more, busy."""
    return sum(share >= least for least in (IDLE_BELOW, 0.4, BUSY))


def of_memory(share: float | None) -> str:
    """The style for the part of a memory that is used, 0 to 1."""
    if share is None or share < NEARLY_FULL:
        return "accent"
    return "bad" if share >= FULL else "warn"


def of_heat(celsius: float | None) -> str:
    """The style for a temperature; "" is plain text."""
    if celsius is None or celsius < WARM:
        return ""
    return "bad" if celsius >= HOT else "warn"


def of_power(watts: float | None, limit: float | None) -> str:
    """The style for a power draw; "" is plain text."""
    held = watts is not None and limit and watts >= limit * AT_LIMIT
    return "warn" if held else ""
