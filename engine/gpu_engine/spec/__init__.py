"""What a person chooses about a run: read, checked and written.

The names that other people's scripts use can be imported from here; each loads on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu_engine.spec.read import apply_sets, from_dict, load
    from gpu_engine.spec.schema import RunSpec
    from gpu_engine.spec.write import to_dict, to_toml

__all__ = ["RunSpec", "apply_sets", "from_dict", "load", "to_dict", "to_toml"]

_WHERE = {"RunSpec": "schema", "apply_sets": "read", "from_dict": "read", "load": "read",
          "to_dict": "write", "to_toml": "write"}


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(f"gpu_engine.spec.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
