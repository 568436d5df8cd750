"""The model and data that bench/step.py trains, under the engine and by hand."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from gpu_engine import Task


@dataclass
class Timed(Task):
    """An MLP on random data that notes when each step begins."""

    sizes: str = "784,256,10"
    """Widths of the layers."""
    examples: int = 16384
    """How many random examples."""
    warm: int = 100
    """Steps at the start that are not measured."""
    steps: int = 1000
    """Steps in all."""
    first: str = ""
    """The file to which rank 0 writes when its first step had ended, Unix seconds."""
    out: str = ""
    """The file to which rank 0 writes the seconds per step."""

    def __post_init__(self) -> None:
        self._count = 0
        self._began = 0.0

    def model(self) -> nn.Module:
        widths = [int(w) for w in self.sizes.split(",")]
        layers = []
        for a, b in pairwise(widths):
            layers += [nn.Linear(a, b), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    def train_data(self) -> TensorDataset:
        made = torch.Generator().manual_seed(0)
        x = torch.randn(self.examples, int(self.sizes.split(",")[0]), generator=made)
        return TensorDataset(x, torch.randint(10, (self.examples,), generator=made))

    def loss(self, model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        self.note()
        return functional.cross_entropy(model(batch[0]), batch[1])

    def optimizer(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=lr)

    def note(self) -> None:
        """Called as a step begins. At the last one, writes the mean time of the measured steps."""
        self._count += 1
        if self._count == 2 and self.first and os.environ.get("RANK", "0") == "0":
            with open(self.first, "w") as file:  # noqa: PTH123
                file.write(repr(time.time()))
        if self._count == self.warm:
            self._began = time.perf_counter()
        if self._count == self.steps and os.environ.get("RANK", "0") == "0":
            took = (time.perf_counter() - self._began) / (self.steps - self.warm)
            with open(self.out, "w") as file:  # noqa: PTH123 - as plain as the loop it times
                json.dump(took, file)
