# A task of somebody's own, whose file has no `from __future__ import annotations`: its annotations
# are evaluated, by Python 3.14 only when they are asked for. Python 3.9 has no `int | None`.
from dataclasses import dataclass
from typing import TYPE_CHECKING, Dict, List, Literal  # noqa: UP035

import torch
from torch import nn
from torch.utils.data import TensorDataset

from gpu_engine import Task

if TYPE_CHECKING:
    from decimal import Decimal


@dataclass
class Probe(Task):
    width: int | None = 4
    "Units."
    kind: Literal["relu", "tanh"] = "relu"
    rates: List[float] = ()  # noqa: UP006
    table: "Dict[str, int] | None" = None  # noqa: UP006
    exact: "Decimal | None" = None

    def model(self):
        return nn.Sequential(nn.Linear(4, self.width), nn.ReLU(), nn.Linear(self.width, 2))

    def train_data(self):
        x = torch.randn(64, 4)
        return TensorDataset(x, (x.sum(1) > 0).long())

    def loss(self, model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])
