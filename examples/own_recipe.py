"""A task with its own recipe: optimizer, schedule and metrics other than the defaults.

    gpu-engine run --set task.use=examples/own_recipe.py:Curve --set devices.pick=1 \\
        --set train.epochs=10 --set train.lr=0.3

A network learns y = sin(3 x0) · cos(2 x1) from noisy points. It uses SGD with momentum, weight
decay on weights but not on biases, a one-cycle learning rate, and three measures of the error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import TensorDataset

import gpu_engine
from gpu_engine import Bounds, Task


@dataclass
class Curve(Task):
    """Regression. Shapes: points (B, 2), values (B, 1)."""

    width: Annotated[int, Bounds(ge=1)] = 64
    "Units in each of the two hidden layers."
    activation: Literal["tanh", "gelu"] = "gelu"
    "The activation function after each hidden layer."
    momentum: Annotated[float, Bounds(ge=0)] = 0.9
    "The momentum of SGD."
    decay: Annotated[float, Bounds(ge=0)] = 1e-4
    "Weight decay; biases are left out."
    examples: Annotated[int, Bounds(ge=1)] = 8192
    "Points to train on; 2,000 more are held out."

    def model(self) -> nn.Module:
        act = {"tanh": nn.Tanh, "gelu": nn.GELU}[self.activation]
        return nn.Sequential(nn.Linear(2, self.width), act(), nn.Linear(self.width, self.width),
                             act(), nn.Linear(self.width, 1))

    def train_data(self):
        return points(self.examples, noise=0.1, seed=1)

    def eval_data(self):
        return points(2000, noise=0.0, seed=2)

    def optimizer(self, model, lr):
        weights = [p for p in model.parameters() if p.dim() > 1]
        biases = [p for p in model.parameters() if p.dim() <= 1]
        return torch.optim.SGD([{"params": weights, "weight_decay": self.decay},
                                {"params": biases, "weight_decay": 0.0}],
                               lr=lr, momentum=self.momentum)

    def schedule(self, optimizer, total_steps):
        # Advanced after each optimizer step. The spec's `lr` is the peak.
        peaks = [group["lr"] for group in optimizer.param_groups]
        return OneCycleLR(optimizer, max_lr=peaks, total_steps=total_steps + 1,
                          cycle_momentum=False)

    def loss(self, model, batch):
        x, y = batch
        error = (model(x) - y).square().mean()
        # One more curve on the screen; a tensor is read later, so this costs the step nothing.
        gpu_engine.log(rms=error.detach().sqrt())
        return error

    def metrics(self, model, batch):
        x, y = batch
        error = model(x) - y
        return {"loss": error.square().sum(), "absolute": error.abs().sum(),
                "within_a_tenth": (error.abs() < 0.1).sum(), "count": len(y)}


def points(count: int, noise: float, seed: int) -> TensorDataset:
    g = torch.Generator().manual_seed(seed)
    x = 4 * torch.rand(count, 2, generator=g) - 2
    y = torch.sin(3 * x[:, :1]) * torch.cos(2 * x[:, 1:])
    return TensorDataset(x, y + noise * torch.randn(y.shape, generator=g))
