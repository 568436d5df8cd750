"""One process and one device."""

from __future__ import annotations

from torch import nn

from gpu_engine.training.strategies.base import Strategy
from gpu_engine.training.task import Task


class Single(Strategy):
    """The model itself, on one device."""

    def wrap(self, task: Task) -> nn.Module:
        """The model itself."""
        return self.raw
