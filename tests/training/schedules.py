"""Schedules of torch.optim of every kind, made for a length and a learning rate, and a task that
uses one and writes down the settings of its optimizer in each step."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim import lr_scheduler as of

from gpu_engine import Task


class Warmup:
    """A callable object, whose fields LambdaLR keeps in its state."""

    def __init__(self, total: int) -> None:
        self.total = total

    def __call__(self, step: int) -> float:
        return min((step + 1) / (self.total // 4), 1.0)


def warmup_then_cosine(opt: Optimizer, total: int, lr: float) -> of.LRScheduler:
    first = of.LinearLR(opt, 0.1, total_iters=total // 4)
    return of.SequentialLR(opt, [first, of.CosineAnnealingLR(opt, total - total // 4)],
                           [total // 4])


def chained(opt: Optimizer, total: int, lr: float) -> of.LRScheduler:
    return of.ChainedScheduler([of.LinearLR(opt, 0.2, total_iters=total // 3),
                                of.CosineAnnealingLR(opt, total)], optimizer=opt)


Builder = Callable[[Optimizer, int, float], of.LRScheduler]

SCHEDULES: dict[str, Builder] = {
    "LambdaLR of an object": lambda o, n, lr: of.LambdaLR(o, Warmup(n)),
    "CosineAnnealingLR": lambda o, n, lr: of.CosineAnnealingLR(o, n, eta_min=1e-5),
    "OneCycleLR": lambda o, n, lr: of.OneCycleLR(o, 10 * lr, total_steps=n),
    "CyclicLR": lambda o, n, lr: of.CyclicLR(o, lr / 10, lr, step_size_up=max(n // 4, 1)),
    "SequentialLR": warmup_then_cosine,
    "SequentialLR with OneCycleLR": lambda o, n, lr: of.SequentialLR(
        o, [of.ConstantLR(o, 0.1, n // 4), of.OneCycleLR(o, lr, total_steps=n)], [n // 4]),
    "ChainedScheduler": chained,
}


def optimizer_of(kind: str, model: nn.Module, lr: float) -> Optimizer:
    """An optimizer with two groups of different learning rates, and momentum or betas to cycle."""
    layers = list(model.children()) or [model]
    groups = [{"params": layers[0].parameters()},
              {"params": [p for m in layers[1:] for p in m.parameters()], "lr": lr / 4}]
    groups = groups if len(layers) > 1 else groups[:1]
    return SGD(groups, lr=lr, momentum=0.9, weight_decay=0.01) if kind == "SGD" else AdamW(
        groups, lr=lr)


def settings(opt: Optimizer) -> list[dict[str, Any]]:
    """The settings of each group that a schedule changes."""
    keys = ("lr", "momentum", "betas", "weight_decay")
    return [{k: float(g[k]) if k == "lr" else g[k] for k in keys if k in g}
            for g in opt.param_groups]


def points(count):
    generator = torch.Generator().manual_seed(count)
    x = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))


@dataclass
class Scheduled(Task):
    """Regression under the schedule that `which` names."""

    which: str = ""
    record: str = ""
    kind: str = "AdamW"
    examples: int = 40
    nan_at: list[int] = field(default_factory=list)
    "The training steps in which the loss is NaN."
    decay: float = 0.01
    kill_at: int = 0
    "In the first attempt: the training step at which the rank kills itself."
    patience: int = 0
    mode: str = "min"
    metric: str = ""
    held_out: int = 12

    def __post_init__(self) -> None:
        self.calls = 0
        if self.metric:
            self.schedule_metric = self.metric

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)).double()

    def train_data(self):
        return points(self.examples)

    def eval_data(self):
        return points(self.held_out) if self.held_out else None

    def optimizer(self, model, lr):
        self.made = optimizer_of(self.kind, model, lr)
        for group in self.made.param_groups:
            group["weight_decay"] = self.decay
        self.lr = lr
        return self.made

    def schedule(self, optimizer, total_steps):
        if self.which == "ReduceLROnPlateau":
            return of.ReduceLROnPlateau(optimizer, self.mode, factor=0.5,
                                        patience=self.patience, threshold=0.2)
        return SCHEDULES[self.which](optimizer, total_steps, self.lr) if self.which else None

    def loss(self, model, batch):
        x, y = batch
        loss = (model(x) - y).square().mean()
        if model.training:
            self.calls += 1
            attempt = os.environ["GPU_PANEL_ATTEMPT"]
            if os.environ.get("RANK", "0") == "0":
                with Path(f"{self.record}-{attempt}").open("a") as file:
                    file.write(f"{settings(self.made)!r}\n")
            if self.calls == self.kill_at and attempt == "1":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.calls in self.nan_at:
                loss = loss * float("nan")
        return loss
