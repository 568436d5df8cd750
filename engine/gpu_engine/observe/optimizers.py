"""A script's optimizers, numbered in the order of their first steps."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from ..events import notices, schema

_STILL, _FEWEST = 200, 20
"""Steps that have changed nothing: so many, or all of a training of at least the second number. A
warm-up may begin with a rate of 0."""
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


class Optimizers:
    """The optimizers of one process that step on losses of their own."""

    def __init__(self) -> None:
        self._known: list[Optimizer] = []
        self._by_id: dict[int, Optimizer] = {}
        """By the id of torch's optimizer, as long as that exists."""

    def stepped(self, optimizer: Any, loss: Any) -> tuple[Optimizer | None, bool]:
        """Note that torch's `optimizer` has stepped on `loss` (None: there was none). Returns its
        entry, and whether it has its number since this step and is the only one that exists.

        The entry is None if that is not a step of its own: another optimizer has stepped on the
        same loss (Muon beside Adam), or it is a further part of the same update (DeepSpeed steps
        once for each group of parameters).
        """
        key = id(optimizer)
        one, begins = self._by_id.get(key), False
        if one is None:
            if loss is None and any(o.stepped is not None for o in self._known):
                return None, False
            one = self._free(type(optimizer).__name__)
            self._by_id[key] = one
            one.ref = weakref.ref(optimizer, lambda _: self._by_id.pop(key))
            one.name, one.stepped = type(optimizer).__name__, None
            begins = len(self._by_id) == 1
        groups = optimizer.param_groups
        groups = {id(groups[0])} if len(groups) == 1 else set(map(id, groups))
        if loss is None and one.stepped is not None and not one.stepped & groups:
            one.stepped |= groups
            return None, False
        if loss is not None or one.stepped is not None:
            one.stepped = groups
        return one, begins

    def size(self) -> int:
        """How many numbers the parameters of all optimizers have; 0 where one is no plain
        tensor."""
        found = [p for optimizer in self.alive() for group in optimizer.param_groups
                 for p in group["params"]]
        return sum(p.numel() for p in found) if all(type(p) in _PLAIN for p in found) else 0

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


class Unchanged:
    """Whether torch's optimizers have changed any parameter so far. They change none by a learning
    rate of 0, and none that has no gradient. One that does settles it."""

    def __init__(self) -> None:
        self._steps = 0
        self.settled = False
        """Whether there is nothing more to be told."""
        self._rates = False
        """Whether any learning rate was not 0."""
        self._gradients = 0
        """In how many steps there was a gradient."""
        self._about = ("", 0)
        """The optimizer's class, and how many parameters it has."""

    def stepped(self, optimizer: Any) -> schema.Warning | None:
        """Note a step of an optimizer, whose gradients are still there, unless it is settled.
        Returns what is to be told, once."""
        groups = [(_rate(group.get("lr")), any(p.grad is not None for p in group["params"]))
                  for group in optimizer.param_groups]
        self.settled = not type(optimizer).__module__.startswith("torch.optim.") \
            or any(rate and there for rate, there in groups)
        self._rates = self._rates or any(rate for rate, _ in groups)
        self._gradients += any(there for _, there in groups)
        self._about = type(optimizer).__name__, sum(
            len(group["params"]) for group in optimizer.param_groups)
        self._steps += 1
        return self._judged(_STILL)

    def over(self) -> schema.Warning | None:
        """The same once no more steps will come."""
        return self._judged(_FEWEST)

    def _judged(self, fewest: int) -> schema.Warning | None:
        if self.settled or self._steps < fewest or (self._rates and self._gradients):
            return None
        self.settled = True
        return notices.unchanged(self._steps, *self._about, no_gradient=self._rates)


def _rate(rate: Any) -> bool:
    """Whether a learning rate is not 0, as far as that is known without waiting for a GPU."""
    return not isinstance(rate, torch.Tensor) or not rate.is_cpu or bool(rate) \
        if not isinstance(rate, (int, float)) else rate != 0
