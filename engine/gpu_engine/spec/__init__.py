"""What a person chooses about a run: read, checked and written.

The names that other people's scripts use are here, each imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu_engine.spec.schema import RunSpec, apply_sets, from_dict, load, to_dict, to_toml

__all__ = ["RunSpec", "apply_sets", "from_dict", "load", "to_dict", "to_toml"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from gpu_engine.spec import schema

        return getattr(schema, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
