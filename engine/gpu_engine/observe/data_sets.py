"""Tells whether the ranks of a script load the same data set, without calling any of its code."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from os import PathLike, fspath
from typing import Any

import torch

_DEEP = 6
"""Data sets within data sets that are looked into: Subset, ConcatDataset, ..."""
_WIDE = 40
"""Attributes of each of them."""
_FEW = 4
"""Elements of each sequence, at its beginning and at its end."""
_ROWS = 16
"""Elements of each tensor or array."""


def trace(dataset: Any) -> str | None:
    """A hash of what tells this data set from another: its files' names, its tensors, which part of
    another one it is. Two parts of the same data have different traces. None if there is nothing in
    it that would tell them apart, so that equal traces would mean nothing.

    Attributes are read, but no method is called, as that could draw random numbers.
    """
    found = list(_described(dataset, _DEEP))
    if not any(content for content, _ in found):
        return None
    text = repr((type(dataset).__qualname__, [what for _, what in found]))
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


def _described(value: Any, deep: int) -> Iterator[tuple[bool, object]]:
    """(whether it is contents of the data, the value in few words), of all that is looked at."""
    try:
        attributes = list(vars(value).items())[:_WIDE]
    except TypeError:  # no attributes of its own
        return
    for name, one in attributes:
        yield from _of(name, one, deep)


def _of(name: str, one: Any, deep: int) -> Iterator[tuple[bool, object]]:
    numpy = sys.modules.get("numpy")
    if isinstance(one, (str, bytes, PathLike)):
        yield True, (name, fspath(one))
    elif isinstance(one, (bool, int, float)) or one is None:
        yield False, (name, one)
    elif type(one) is torch.Tensor:
        if one.is_cpu and one.layout == torch.strided:  # reading one on a GPU would wait for it
            yield True, (name, tuple(one.shape), _elements(one.detach(), one.numel()))
    elif numpy is not None and type(one) is numpy.ndarray:
        yield True, (name, one.shape, _elements(one, one.size))
    elif type(one) is range:
        yield True, (name, one)
    elif type(one) in (list, tuple):
        yield False, (name, len(one))
        for at in sorted({*range(min(_FEW, len(one))), *range(max(len(one) - _FEW, 0), len(one))}):
            if deep:
                yield from _of(f"{name}[{at}]", one[at], deep - 1)
                yield isinstance(one[at], (int, float)), (at, type(one[at]).__name__)
    elif isinstance(one, torch.utils.data.Dataset) and deep:
        yield from _described(one, deep - 1)


def _elements(array: Any, count: int) -> list[str]:
    """A few elements of an array, from its beginning to its end."""
    found = []
    for i in range(_ROWS if count else 0):
        one = array
        for at, size in enumerate(array.shape):
            one = one[((size - 1) * i // (_ROWS - 1)) if at == 0 else size // 2]
        found.append(str(one.item() if hasattr(one, "item") else one))
    return found
