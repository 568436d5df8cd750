"""A script's optimizers, numbered in the order of their first steps; losses that no step uses, and
gradients that are clipped while they are scaled."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from ..events import notices, schema

_PLAIN = (torch.nn.Parameter, torch.Tensor)


class Optimizer:
    """What is known of one optimizer."""

    __slots__ = ("name", "number", "probe", "ref", "stepped")

    def __init__(self, number: int) -> None:
        self.number = number
        self.ref: Callable[[], Any] = lambda: None
        """Gives torch's optimizer, or None once it is gone."""
        self.name = ""
        self.probe: weakref.ref[Any] | None = None
        """The smallest parameter that had a gradient in its first step, if it is a plain tensor."""
        self.stepped: set[int] | None = None
        """The ids of the parameter groups in the current update so far. None if none of its steps
        has ever had a loss."""

    def gradient(self) -> Any:
        """The gradient of `probe` now; None if there is none."""
        return getattr(self.probe and self.probe(), "grad", None)


class Stepped(NamedTuple):
    """A step of an optimizer."""

    optimizer: Optimizer
    others_alive: frozenset[int] | None
    """If the optimizer has its number since this step, the numbers of all others that still exist;
    else None."""


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
        one, alive = self._by_id.get(id(optimizer)), None
        if one is None or one.ref() is not optimizer:
            if loss is None and any(o.stepped is not None for o in self._known):
                return None
            one = self._free(type(optimizer).__name__)
            one.ref, one.name = weakref.ref(optimizer), type(optimizer).__name__
            one.stepped = None
            there = [p for group in optimizer.param_groups for p in group["params"]
                     if type(p) in _PLAIN and p.grad is not None]
            one.probe = weakref.ref(min(there, key=torch.Tensor.numel)) if there else None
            self._by_id = {id(o.ref()): o for o in self._known if o.ref() is not None}
            alive = frozenset(o.number for o in self._known
                              if o is not one and o.ref() is not None)
        groups = {id(group) for group in optimizer.param_groups}
        if loss is None and one.stepped is not None and not one.stepped & groups:
            one.stepped |= groups
            return None
        if loss is not None or one.stepped is not None:
            one.stepped = groups
        return Stepped(one, alive)

    def plain(self) -> bool:
        """Whether some optimizer is known, and the parameters of all are plain tensors."""
        found = [p for ref in [o.ref for o in self._known] if (optimizer := ref()) is not None
                 for group in optimizer.param_groups for p in group["params"]]
        return bool(found) and all(type(p) in _PLAIN for p in found)

    def alive(self) -> list[Optimizer]:
        """Those whose torch optimizers still exist."""
        return [one for one in self._known if one.ref() is not None]

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

# ------------------------------------------------------------------------------------------------
# Tells the losses whose gradients are cleared before any optimizer steps on them, as those of a
# batch that a script leaves out because its loss or the norm of its gradients is bad.
#
# That is looked at only where `backward()` is called once more before a step. Then all gradients
# of all optimizers are gone, or are zero (which is not looked at on a GPU, as it would wait), and
# the call itself brings them back at once. A script that collects gradients in places of its own
# (DeepSpeed, a projection of the gradients of several tasks) does not step on what the last call
# left there: its losses count as before.


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
        with torch.no_grad():
            if not p.grad.is_cpu or p.grad.layout != torch.strided or p.grad.any():
                return False
    return True


# ------------------------------------------------------------------------------------------------
# Finds gradients that are clipped while a GradScaler still scales them, so that they end up far
# below what was asked for. It is looked for in the first steps of a script that scales its loss.

_CLIP_STEPS = 100
"""Steps after which nothing more is looked at."""
_CLIP_FACTOR = 1000.0
"""The scale is so many times the norm or value that is asked for, at least. Who clips to a multiple
of the scale means what the script does."""


class Clips:
    """What is clipped between a backward pass and the step."""

    def __init__(self, optimizers: Optimizers) -> None:
        self._optimizers = optimizers
        self._before: list[tuple[Optimizer, int]] = []
        self.clipped: dict[int, float] = {}
        """To what the gradients of an optimizer were clipped since the last pass, by its number."""
        self.over = False

    def begins(self, steps: int) -> None:
        """Called before gradients are clipped, after so many steps."""
        # A tensor's version counts changes in place: nothing public says whether one was clipped.
        self.over = self.over or steps > _CLIP_STEPS
        self._before = [] if self.over else [
            (one, getattr(grad, "_version", 0)) for one in self._optimizers.alive()
            if (grad := one.gradient()) is not None]

    def ended(self, most: Any) -> None:
        """Called after gradients were clipped to the norm or value `most`."""
        for one, version in self._before:
            grad = one.gradient()
            if grad is not None and getattr(grad, "_version", 0) != version \
                    and isinstance(most, (int, float)):
                self.clipped[one.number] = most

    def unscaled(self, scaler: Any, optimizer: Any) -> schema.Warning | None:
        """Called before the gradients of torch's `optimizer` are divided by the scale. Returns what
        is to be told, once."""
        for one in self._optimizers.alive():
            most = self.clipped.pop(one.number, None) if one.ref() is optimizer else None
            if most is not None and not self.over:
                scale = scaler.get_scale()  # waits for a GPU, once
                self.over = True
                if scale >= _CLIP_FACTOR * most:
                    return notices.clipped_scaled(most, scale)
        return None
