"""Tasks whose training `test_by_hand` repeats in plain torch.

Nothing here depends on the engine's seeds: weights and examples have generators of their own.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gpu_engine import Task

RANK = int(os.environ.get("RANK", 0))


def weights(hidden: int = 12) -> nn.Module:
    """The model before training, in float64."""
    net = nn.Sequential(nn.Linear(5, hidden), nn.Tanh(), nn.Linear(hidden, 1)).double()
    made = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for value in net.parameters():
            value.copy_(torch.randn(value.shape, generator=made, dtype=torch.float64) * 0.4)
    return net


def examples(many: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x (many, 5), y (many, 1), and the number of items in each example (many,): 0 to 7."""
    made = torch.Generator().manual_seed(12)
    x = torch.randn(many, 5, generator=made, dtype=torch.float64)
    return x, 3 * x.prod(1, keepdim=True).cos(), torch.arange(many) * 5 % 8


class TwoHeads(nn.Module):
    """Uses one of two heads in each pass, so the other's parameters get no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.body = weights(4)
        self.heads = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1)]).double()
        with torch.no_grad():
            for value in self.heads.parameters():
                value.fill_(0.5)

    def forward(self, x: torch.Tensor, head: int) -> torch.Tensor:
        return self.heads[head](self.body(x))


class Twice(nn.Module):
    """Uses one layer twice, recomputed in the backward pass each time. The layer's gradients then
    come in two parts, which DDP allows only with a static graph."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.again = again
        self.inner, self.outer = weights(5)[0], weights(5)[2]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = checkpoint(self.inner, x, use_reentrant=True) if self.again and x.requires_grad \
                else self.inner(x)
            x = x.tanh()
        return self.outer(x)


@dataclass
class ByHand(Task):
    """Regression that writes the numbers of the examples in each backward pass to a file."""

    many: int = 120
    record: str = ""
    counts: bool = False
    "Return (sum, count); each example counts as many items as it has."
    sgd: bool = False
    cosine: bool = False
    decay: bool = False
    "Multiply the learning rate by 0.9 after each step."
    half: bool = False
    "In float32, as autocast needs it, with a loss so large that fp16 overflows at first."
    kind: str = "plain"
    "plain | heads (which one follows the first example's number) | twice"

    def model(self) -> nn.Module:
        if self.half:
            return weights().float()
        return {"plain": weights, "heads": TwoHeads, "twice": lambda: Twice(True)}[self.kind]()

    def train_data(self):
        x, y, items = examples(self.many)
        if self.half:
            x, y = x.float(), y.float()
        return torch.utils.data.TensorDataset(x, y, items, torch.arange(self.many))

    def optimizer(self, model, lr):
        if self.sgd:
            return torch.optim.SGD(model.parameters(), lr=lr)
        return torch.optim.AdamW(model.parameters(), lr=lr)

    def schedule(self, optimizer, total_steps):
        if self.decay:
            return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        if not self.cosine:
            return None
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total_steps)

    def loss(self, model, batch):
        x, y, items, numbers = batch
        if model.training and self.record:
            with Path(self.record, f"{RANK}.jsonl").open("a") as file:
                file.write(json.dumps(numbers.tolist()) + "\n")
        if self.kind == "twice":
            x = x.clone().requires_grad_()  # a reentrant checkpoint needs an input with a gradient
        out = model(x, int(numbers[0]) % 2) if self.kind == "heads" else model(x)
        error = (out - y).square().squeeze(1)
        if self.half:
            return 100 * error.mean()
        if self.counts:
            return (error * items).sum(), items.sum()
        return error.mean()


@dataclass
class ByDefault(ByHand):
    """With the default optimizer of a task."""

    optimizer = Task.optimizer
