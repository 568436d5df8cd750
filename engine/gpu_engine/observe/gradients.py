"""What becomes of gradients between two steps: those of a batch that is left out, those of an
epoch's last batches, and those that are clipped while a GradScaler still scales them.

A batch is left out by a guard, as its loss or the norm of its gradients is bad: the gradients are
cleared, and `backward()` is called once more before a step. Then all gradients of all optimizers
are gone, or are zero (which is not looked at on a GPU, as it would wait), and that call brings them
back at once. A script that collects gradients in places of its own (DeepSpeed, a projection of the
gradients of several tasks) does not step on what the last call left there: its losses count.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from ..events import notices, schema
from . import wrap

_CLIP_STEPS = 100
"""Steps after which clipping is not looked at any more."""
_Tensor, _STRIDED = torch.Tensor, torch.strided
_SOME = 32
"""Numbers of a gradient that are looked at before all of them are."""
_CLIP_FACTOR = 1000.0
"""The scale is so many times the norm or value that is asked for, at least. Who clips to a multiple
of the scale means what the script does."""


def _first(optimizer: Any) -> torch.Tensor | None:
    """The gradient of the first parameter of a torch optimizer that has one."""
    return next((p.grad for group in optimizer.param_groups for p in group["params"]
                 if p.grad is not None), None)


def _gone(parameter: Any) -> bool:
    """Whether the gradient of a parameter is gone or zero, as far as is known."""
    grad = parameter.grad
    if grad is None:
        return True
    if type(grad) is not _Tensor or not grad.is_cpu or grad.layout is not _STRIDED:
        return False
    # At each pass of an accumulation `any` takes half a millisecond for 350,000 numbers, and 13 µs
    # for ten, as its code has left the caches. Of a gradient that is not zero, some numbers say so.
    count = grad.numel()
    if grad.dim() == 1 and count <= 2 * _SOME:
        return not any(grad.tolist())
    some = grad.is_contiguous() and any(grad.view(-1)[::count // _SOME or 1].tolist())
    return not some and not grad.any()


class Gradients:
    """Watches the gradients of all optimizers that have stepped."""

    def __init__(self, alive: Callable[[], list[Any]]) -> None:
        """`alive` gives torch's optimizers that have stepped and still exist."""
        self._alive = alive
        self.suspected = 0
        """How many losses there were when all gradients were found to be gone, until that
        `backward()` has ended."""
        self.left_out = 0
        """How many losses no step will use, so far."""
        self._there: Callable[[], Any] = lambda: None
        """Gives a parameter whose gradient was not gone, or None."""
        self._brought: dict[int, weakref.ref[Any]] = {}
        """By the optimizer's id the first of the gradients that it brought back."""
        self.calls = 0
        """Calls of backward() in the last step."""
        self._epoch = (0, 0)
        """Steps so far, and losses since the last, when a DataLoader's iteration last began."""
        self.passes = 0
        """Calls of backward() so far."""
        self._loads: tuple[int, int | None] = (0, None)
        """Calls before the DataLoader's iteration that began last, and how many batches it has."""
        self._each = False
        """Whether the epoch that has ended had a call for each of its batches, and no other."""
        self._rest = 0
        """How many losses the epoch before the last one has left."""
        self._rest_told = False
        self._versions: list[tuple[int, torch.Tensor, int]] = []
        self._clipped: dict[int, float] = {}
        """By the optimizer's id to what its gradients were clipped since the last pass."""
        self._clips_over = False

    # --- losses that no step uses ----------------------------------------------------------------

    def backward_begins(self, losses: int) -> None:
        """Called with how many losses there are since the last step, if there are any or a
        GradScaler scales them."""
        self._clipped.clear()
        if losses and ((there := self._there()) is None or _gone(there)):
            optimizers = self._alive()
            # From the last, as one that is not gone will do: it is often a bias or a norm, of few
            # numbers.
            there = next((p for optimizer in optimizers for group in reversed(
                optimizer.param_groups) for p in reversed(group["params"]) if not _gone(p)), None)
            if there is not None:
                self._there = weakref.ref(there)
            elif optimizers:
                self.suspected = losses

    @wrap.hidden
    def backward_ended(self) -> None:
        """Called after it, if all gradients are `suspected` to be gone."""
        brought = {id(o): weakref.ref(grad) for o in self._alive()
                   if (grad := _first(o)) is not None}
        if brought:
            self._brought, self.left_out = brought, self.suspected
        self.suspected = 0

    def iterated(self, loader: Any, steps: int, losses: int) -> None:
        """Called when a DataLoader begins an epoch, after so many steps, and losses since then."""
        self._epoch, (before, batches) = (steps, losses), self._loads
        if self.passes > before:  # not one of an evaluation
            self._each = self.passes - before == batches
        self._loads = self.passes, None
        self._loads = self.passes, len(loader.batch_sampler)  # where it has a length

    def stepped(self, optimizer: Any = None, steps: int = 0, losses: int = 0
                ) -> tuple[int, schema.Warning | None]:
        """Called after a step of torch's `optimizer`, of so many steps before it, with so many
        losses since the last. Returns how many of the first ones it has not stepped on, and what
        is to be told. Without an optimizer none has stepped."""
        count, brought = self.left_out, self._brought.get(id(optimizer))
        self.left_out, self._brought = 0, {}
        if optimizer is None or not count or brought is None or brought() is not _first(optimizer):
            count = 0
        before, self.calls = self.calls, losses - count
        # The gradients of the last `count` batches were cleared when an epoch began, though a step
        # has more of them: an accumulation that the epoch's end has cut off. Twice is a habit.
        # Other calls than one a batch may be meant to be in no step.
        if not 0 < count < self.calls == before or self._epoch != (steps, count) \
                or not self._each:
            return count, None
        habit, self._rest = count == self._rest and not self._rest_told, count
        self._rest_told |= habit
        return count, notices.rest_dropped(count, before) if habit else None

    # --- clipping --------------------------------------------------------------------------------

    def clip_begins(self, steps: int) -> None:
        """Called before gradients that are scaled may be clipped, after so many steps."""
        # A tensor's version counts changes in place: nothing public says whether one was clipped.
        self._clips_over = self._clips_over or steps > _CLIP_STEPS
        self._versions = [] if self._clips_over else [
            (id(o), grad, getattr(grad, "_version", 0)) for o in self._alive()
            if (grad := _first(o)) is not None]

    def clip_ended(self, most: Any) -> None:
        """Called after gradients were clipped to the norm or value `most`."""
        for optimizer, grad, version in self._versions:
            if getattr(grad, "_version", 0) != version and isinstance(most, (int, float)):
                self._clipped[optimizer] = most
        self._versions = []

    def unscaled(self, scaler: Any, optimizer: Any) -> schema.Warning | None:
        """Called before the gradients of torch's `optimizer` are divided by the scale. Returns what
        is to be told, once."""
        most = self._clipped.pop(id(optimizer), None)
        if most is None or self._clips_over:
            return None
        scale = scaler.get_scale()  # waits for a GPU, once
        self._clips_over = True
        return notices.clipped_scaled(most, scale) if scale >= _CLIP_FACTOR * most else None
