"""A script's optimizers, numbered in the order of their first steps."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

_PLAIN = (torch.nn.Parameter, torch.Tensor)


class Optimizer:
    """What is known of one optimizer."""

    __slots__ = ("name", "number", "ref", "stepped")

    def __init__(self, number: int) -> None:
        self.number = number
        self.ref: Callable[[], Any] = lambda: None
        """Gives torch's optimizer, or None once it is gone."""
        self.name = ""
        self.stepped: set[int] | None = None
        """The ids of the parameter groups in the current update so far. None if none of its steps
        has ever had a loss."""


class Stepped(NamedTuple):
    """A step of an optimizer."""

    optimizer: Optimizer
    begins: bool
    """Whether the optimizer has its number since this step, and is the only one that exists."""


class Optimizers:
    """The optimizers of one process that step on losses of their own."""

    def __init__(self) -> None:
        self._known: list[Optimizer] = []
        self._by_id: dict[int, Optimizer] = {}
        """By the id of torch's optimizer. Once that is gone, the id may be another object's."""

    def stepped(self, optimizer: Any, loss: Any) -> Stepped | None:
        """Note that torch's `optimizer` has stepped on `loss` (None: there was none).

        Returns None if that is not a step of its own: another optimizer has stepped on the same
        loss (Muon beside Adam), or it is a further part of the same update (DeepSpeed steps once
        for each group of parameters).
        """
        one, begins = self._by_id.get(id(optimizer)), False
        if one is None or one.ref() is not optimizer:
            if loss is None and any(o.stepped is not None for o in self._known):
                return None
            one = self._free(type(optimizer).__name__)
            one.ref, one.name = weakref.ref(optimizer), type(optimizer).__name__
            one.stepped = None
            self._by_id = {id(o.ref()): o for o in self._known if o.ref() is not None}
            begins = len(self._by_id) == 1
        groups = {id(group) for group in optimizer.param_groups}
        if loss is None and one.stepped is not None and not one.stepped & groups:
            one.stepped |= groups
            return None
        if loss is not None or one.stepped is not None:
            one.stepped = groups
        return Stepped(one, begins)

    def plain(self) -> bool:
        """Whether some optimizer is known, and the parameters of all are plain tensors."""
        found = [p for optimizer in self.alive() for group in optimizer.param_groups
                 for p in group["params"]]
        return bool(found) and all(type(p) in _PLAIN for p in found)

    def alive(self) -> list[Any]:
        """Torch's optimizers that have stepped and still exist."""
        return [found for ref in [o.ref for o in self._known] if (found := ref()) is not None]

    def by_hand(self) -> Optimizer:
        """An entry for updates by hand, without an optimizer. A real optimizer that steps later
        takes over its number."""
        one = self._free("by hand")
        one.name = "by hand"
        return one

    def _free(self, name: str) -> Optimizer:
        """An entry whose optimizer is gone, if possible of the same class; else a new entry."""
        gone = [o for o in self._known if o.ref() is None]
        one = next((o for o in gone if o.name == name), gone[0] if gone else None)
        if one is None:
            one = Optimizer(len(self._known))
            self._known.append(one)
        return one
