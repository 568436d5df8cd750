"""Tells the losses whose gradients are cleared before any optimizer steps on them, as those of a
batch that a script leaves out because its loss or the norm of its gradients is bad.

That is looked at only where `backward()` is called once more before a step. Then all gradients of
all optimizers are gone, or are zero (which is not looked at on a GPU, as it would wait), and the
call itself brings them back at once. A script that collects gradients in places of its own
(DeepSpeed, a projection of the gradients of several tasks) does not step on what the last call left
there: its losses count as before.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from . import torch_private
from .optimizers import Optimizer, Optimizers


class Cleared:
    """Counts the losses since the last step whose gradients were cleared."""

    def __init__(self, optimizers: Optimizers) -> None:
        self._optimizers = optimizers
        self.count = 0
        self._left: dict[int, weakref.ref[Any]] = {}
        """By the optimizer's number a gradient as the last `backward()` after that left it."""
        self.suspected = 0
        """How many losses there were when all gradients were found to be gone, until `confirm`."""

    def look(self, losses: int) -> None:
        """Called before `backward()`, with so many losses since the last step."""
        known = self._optimizers.alive()
        if known and all(map(_is_clear, known)):
            self.suspected = losses

    def confirm(self) -> None:
        """Called after that `backward()`."""
        left = {one.number: weakref.ref(grad) for one in self._optimizers.alive()
                if (grad := one.gradient()) is not None}
        if left:
            self._left, self.count = left, self.suspected
        self.suspected = 0

    def take(self, optimizer: Any = None) -> int:
        """How many of the first losses since the last step torch's `optimizer`, which has stepped,
        has not stepped on. Begins anew."""
        left, count = self._left, self.count
        self._left, self.count = {}, 0
        one = next((o for o in self._optimizers.alive() if o.ref() is optimizer), None)
        grad = one and one.gradient()
        return count if one and grad is not None and one.number in left \
            and left[one.number]() is grad else 0


def _is_clear(one: Optimizer) -> bool:
    if one.probe is None:
        return False
    return _none((one.probe(),)) and _none(p for g in one.ref().param_groups for p in g["params"])


def _none(parameters: Iterable[Any]) -> bool:
    """Whether none of these parameters has a gradient other than zero, as far as is known."""
    for p in parameters:
        if p is None or p.grad is None:
            continue
        with torch_private.no_modes(p.grad), torch.no_grad():
            if not p.grad.is_cpu or p.grad.layout != torch.strided or p.grad.any():
                return False
    return True
