"""The strategy of a mode."""

from __future__ import annotations

import importlib

from gpu_engine.spec import modes
from gpu_engine.training.strategies.base import Strategy


def strategy_of(mode: str) -> type[Strategy]:
    """The class that the record of `mode` in `spec/modes.py` names.

    Raises SpecError if there is no such mode, and TypeError if the named class is no strategy.
    """
    where = modes.get(mode).strategy
    module, _, name = where.partition(":")
    found = getattr(importlib.import_module(module), name, None)
    if not (isinstance(found, type) and issubclass(found, Strategy)):
        raise TypeError(f"mode {mode!r} names {where} as its strategy, which is no subclass of "
                        "gpu_engine.training.strategies.base.Strategy")
    return found
