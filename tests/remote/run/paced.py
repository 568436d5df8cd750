"""The digits, trained at a pace that leaves the machine to others."""

from __future__ import annotations

import time

from torch import Tensor, nn

from gpu_engine.tasks.digits import Digits


class Paced(Digits):
    """A pause in each step, for tests in which a run goes on until something happens to it."""

    def loss(self, model: nn.Module, batch: list[Tensor]) -> Tensor:
        time.sleep(0.05)
        return super().loss(model, batch)
