"""Libraries of other projects that an export needs, and what to say where they are missing."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from gpu_engine.common.errors import UserError
from gpu_engine.interpreters.choose import extra as what_to_type


def load(extra: str, *modules: str) -> list[Any]:
    """These modules, which come with the extra `extra` of gpu-panel, a library of the same name.
    Raises UserError that says how to install it if one is missing or can't be imported."""
    try:
        found = [import_module(name) for name in modules]
        # `wandb/`, which W&B makes, passes for a package where `python -m` is started.
        if any(module.__file__ is None for module in found):
            raise ModuleNotFoundError(name=extra)
        return found
    except ImportError as err:
        why = f"{extra} is not installed"
        if err.name is None or err.name.partition(".")[0] != extra:
            why = f"{extra} can't be imported ({err})"
        raise UserError(f"{why} for {sys.executable}, which runs gpu-engine;\n"
                        f"{what_to_type(extra)} installs it") from None
