"""The same work as a task of gpu-panel's engine."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from gpu_engine import Task

sys.path.insert(0, str(Path(__file__).parent))

import work


@dataclass
class Timed(Task):
    """An MLP on random data that notes when each step begins."""

    def __post_init__(self) -> None:
        work.settle(int(os.environ.get("WORLD_SIZE", "1")))
        self._marks = work.Marks()

    def model(self) -> nn.Module:
        return work.model()

    def train_data(self) -> TensorDataset:
        data = work.Examples()
        return TensorDataset(data.x, data.y)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        self._marks.step()
        return functional.cross_entropy(model(batch[0]), batch[1])

    def optimizer(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=lr)
