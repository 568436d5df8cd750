"""Finds gradients that are clipped while a GradScaler still scales them, so that they end up far
below what was asked for. It is looked for in the first steps of a script that scales its loss."""

from __future__ import annotations

from typing import Any

from ..events import notices, schema
from . import torch_private
from .optimizers import Optimizer, Optimizers

STEPS = 100
"""Steps after which nothing more is looked at."""
FACTOR = 1000.0
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
        self.over = self.over or steps > STEPS
        self._before = [] if self.over else [
            (one, torch_private.changes_of(grad)) for one in self._optimizers.alive()
            if (grad := one.gradient()) is not None]

    def ended(self, most: Any) -> None:
        """Called after gradients were clipped to the norm or value `most`."""
        for one, version in self._before:
            grad = one.gradient()
            if grad is not None and torch_private.changes_of(grad) != version \
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
                if scale >= FACTOR * most:
                    return notices.clipped_scaled(most, scale)
        return None
