"""Events as the JSON objects in the lines of a rank's file; `decode` reads them.

Standard library and Python 3.9 syntax only, like `schema`.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from .schema import Event, rename_reserved  # relative: see `writer`


def to_dict(event: Event) -> dict[str, object]:
    """The JSON object of an event. Numbers that are not finite are still floats in it."""
    return {"t": round(event.t, 3), "kind": event.kind, **_fields(event)}


def _fields(record: Any) -> dict[str, object]:
    out: dict[str, object] = {}
    for one in fields(record):
        value = getattr(record, one.name)
        if one.type == "Named":
            out.update(rename_reserved(value))
        elif isinstance(value, dict):
            out[one.name] = {str(key): _fields(other) for key, other in value.items()}
        elif one.name != "t" and (value not in (None, ()) or one.default not in (None, ())):
            out[one.name] = value
    return out


def json_safe(value: object) -> object:
    """`value` with every float that is not finite replaced by a string, as strict JSON needs it."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict):
        return {str(k): json_safe(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_safe(v) for v in value]
    return value
