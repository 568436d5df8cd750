"""A task with one example that spoils a training: its target is not a number."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from gpu_engine import Task

BAD, EXAMPLES = 7, 24


def data() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.arange(EXAMPLES).unsqueeze(1) / EXAMPLES
    y = 2 * x + 1
    y[BAD] = float("nan")
    return x, y


def model() -> nn.Module:
    net = nn.Linear(1, 1)
    nn.init.constant_(net.weight, 0.5)
    nn.init.zeros_(net.bias)
    return net


@dataclass
class Poison(Task):
    def model(self) -> nn.Module:
        return model()

    def train_data(self):
        return torch.utils.data.TensorDataset(*data())

    def optimizer(self, model, lr):
        return torch.optim.SGD(model.parameters(), lr=lr)

    def loss(self, model, batch):
        x, y = batch
        return (model(x) - y).square().mean()
