"""Writing TOML that nobody has written before, so that there are no comments to keep.

Where there are, as in presets, tomlkit writes; to import it and to write with it takes a tenth of
the time of a launch.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from gpu_engine.common.clean import escaped

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def dumps(data: Mapping[str, Any]) -> str:
    """`data` as TOML: texts, numbers, booleans, lists and dicts of such. Raises TypeError for any
    other value, as None, for which TOML has no word."""
    return "\n".join(_table((), data)).lstrip("\n") + "\n"


def _table(name: tuple[str, ...], data: Mapping[str, Any]) -> list[str]:
    """The lines of a table: its values, then the tables in it."""
    below = {key: value for key, value in data.items() if isinstance(value, Mapping)}
    lines = [f"{_key(key)} = {_value(value)}" for key, value in data.items() if key not in below]
    if name and (lines or not below):
        lines = ["", f"[{'.'.join(map(_key, name))}]", *lines]
    for key, value in below.items():
        lines += _table((*name, key), value)
    return lines


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):  # JSON's escapes are TOML's too
        return escaped(json.dumps(value, ensure_ascii=False))
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_key(key)} = {_value(each)}" for key, each in value.items())
        return f"{{{inside}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    raise TypeError(f"TOML has no word for {value!r}")
