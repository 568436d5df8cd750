"""Tells whether the loaders of a script's ranks give the same batches."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from . import torch_private

_DEEP, _WIDE = 4, 40
"""Collections within a batch that are looked into, and how many of the elements of each."""
_NUMBERS = 500
"""About how many numbers of each tensor or array, from its beginning to its end."""


def contents(batch: Any, deep: int = _DEEP) -> Iterator[object]:
    """Some of the numbers and texts in a batch. Nothing of what can't be read, as on a GPU, which
    would have to be waited for."""
    numpy = sys.modules.get("numpy")
    if isinstance(batch, (str, bytes, int, float)):
        yield batch
    elif (type(batch) is torch.Tensor and batch.is_cpu and batch.layout == torch.strided) or (
            numpy is not None and type(batch) is numpy.ndarray):
        with torch_private.no_modes(batch):
            flat = (batch.detach() if isinstance(batch, torch.Tensor) else batch).reshape(-1)
            numbers = flat[::len(flat) // _NUMBERS + 1].tolist()
        yield tuple(batch.shape), numbers
    elif isinstance(batch, (list, tuple, Mapping)) and deep:
        for one in list(batch.values() if isinstance(batch, Mapping) else batch)[:_WIDE]:
            yield from contents(one, deep - 1)
