"""The JSON schema of a preset, by which an editor completes and checks one."""

from __future__ import annotations

from typing import Any

import msgspec

from gpu_engine.spec.catalog import key_docs
from gpu_engine.spec.presets import LONGEST_DESCRIPTION
from gpu_engine.spec.schema import SECTIONS, RunSpec, keys

_TIME = {"type": "string", "pattern": r"^(\s*[\d.]+\s*(s|min|m|h|d|$))+\s*$"}
"""What `values.seconds` understands."""


def preset() -> dict[str, Any]:
    """The schema: the types of the spec, with the bounds, choices and texts of its keys."""
    whole = msgspec.json.schema(RunSpec)
    tables = {name: whole["$defs"][cls.__name__] | {"additionalProperties": False}
              for name, cls in {"": RunSpec, **SECTIONS}.items()}
    for key in keys().values():
        kind = key.kind.without_none
        about = {"minimum": kind.bounds.ge, "exclusiveMinimum": kind.bounds.gt,
                 "maximum": kind.bounds.le, "description": key_docs()[key.dotted],
                 "enum": [text for text, _ in kind.choices] or None}
        node = tables[key.section]["properties"][key.name]
        node |= {name: value for name, value in about.items() if value is not None}
        if kind.bounds.time:
            types = node.setdefault("anyOf", [{"type": "number"}])  # a key that may be None has it
            types.append(_TIME)
            node.pop("type", None)
    top = tables.pop("")
    top["properties"] |= tables | {"description": {
        "type": "string", "maxLength": LONGEST_DESCRIPTION, "description": "What it is for."}}
    return {"$schema": "http://json-schema.org/draft-07/schema#"} | top
