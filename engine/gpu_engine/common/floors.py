"""The oldest Python and torch that ranks run with, and a torch in words. Standard library only: a
rank imports this."""

from __future__ import annotations

import re
from collections.abc import Sequence

PYTHON = (3, 10)
"""`worker/__main__.py` has it once more, as it says so to Pythons that can't read this file."""
TORCH = (2, 4)


def python_too_old(version: Sequence[int]) -> str | None:
    """Why ranks can't run in this Python, by its version, (3, 8, 18): "is Python 3.8.18, and ranks
    need Python 3.10 or newer". None if they can."""
    if tuple(version[:2]) >= PYTHON:
        return None
    return f"is Python {_dotted(version)}, and ranks need Python {_dotted(PYTHON)} or newer"


def torch_too_old(version: str) -> str | None:
    """Why ranks can't run with this torch, by its `__version__`: "torch 2.1.2+cu121 is too old:
    ranks need torch 2.4 or newer". None if they can, or if the version can't be read."""
    if torch_since(version, *TORCH):
        return None
    return f"torch {version} is too old: ranks need torch {_dotted(TORCH)} or newer"


def torch_since(version: str, major: int, minor: int) -> bool:
    """Whether this torch, by its `__version__`, "2.13.0+cu130", is of that release or newer. One
    whose version can't be read counts as newer."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is None or (int(found[1]), int(found[2])) >= (major, minor)


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version[:3]))


def torch_words(version: str, cuda: str | None, hip: str | None) -> str:
    """"torch 2.13.0+cu130 for CUDA 13.0", "torch 2.13.0+cpu for CPUs".

    cuda, hip: the CUDA or ROCm that it was built for; None: not for that.
    """
    what = f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else "CPUs"
    return f"torch {version} for {what}"
