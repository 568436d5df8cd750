"""Columns of a list of runs that a person asks for by name: a key of the spec, "train.lr", or a
value that runs have recorded, "max:eval:accuracy". Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from gpu_engine.common import units
from gpu_engine.common.clean import clean

if TYPE_CHECKING:
    from gpu_engine.sweep.track import Extent

HOW = {"last": "the last", "min": "the least", "max": "the greatest"}
"""What can be asked of a value that runs have recorded; it stands before the value's name."""
WIDEST = 24
"""Cells of a value."""

Values = Mapping[str, "Extent"]
Settings = Mapping[str, str]
Order = tuple[bool, float, str]
"""What runs are sorted by: numbers first, then texts."""


def known(name: str) -> bool:
    """Whether this can be the name of such a column."""
    from gpu_engine.spec import schema  # after the panel's first frame

    return _recorded(name) is not None or ("." in name and schema.is_key(name))


def greatest_first(name: str) -> bool:
    """Whether runs that are sorted by it begin with the greatest value."""
    return name.startswith("max:")


def is_recorded(name: str) -> bool:
    return _recorded(name) is not None


def head(name: str) -> str:
    """What stands above the column."""
    return clean(name.removeprefix("task.params.").removeprefix("run.env."), WIDEST)


def value(name: str, settings: Settings, values: Values) -> float | str | None:
    """A run's value in this column; None: it has none."""
    if (asked := _recorded(name)) is None:
        return settings.get(name)
    how, what = asked
    extent = values.get(what)
    if extent is None:
        return None
    return extent.last if how == "last" else extent.least if how == "min" else extent.greatest


def text(name: str, settings: Settings, values: Values) -> str:
    """The same for people; "" where there is none."""
    found = value(name, settings, values)
    return "" if found is None else clean(found, WIDEST) if isinstance(found, str) \
        else units.loss(found)


def order(name: str, settings: Settings, values: Values) -> Order | None:
    """What runs are sorted by; None: this one has no value to compare."""
    found = value(name, settings, values)
    try:
        number = float(found) if found is not None else math.nan
    except (ValueError, OverflowError):
        return True, 0.0, str(found)
    return (False, number, "") if math.isfinite(number) else None


def names(settings: Iterable[Settings], values: Iterable[Values]) -> dict[str, list[str]]:
    """The columns that these runs can fill, each with a few of its different values: first keys in
    which they differ, then other keys, then what they have recorded."""
    keys: dict[str, dict[str, None]] = {}
    for one in settings:
        for key, said in one.items():
            keys.setdefault(key, {})[said] = None
    found = sorted((key for key in keys if known(key)), key=lambda key: len(keys[key]) < 2)
    recorded = dict.fromkeys(what for one in values for what in one)
    return {key: list(keys[key])[:4] for key in found} \
        | {f"{how}:{what}": [] for what in recorded for how in HOW}


def _recorded(name: str) -> tuple[str, str] | None:
    how, _, what = name.partition(":")
    return (how, what) if how in HOW and what else None
