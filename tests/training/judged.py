"""A task whose evaluations return given values, fail, or are stopped."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from gpu_engine import Task

RANK = int(os.environ.get("RANK", 0))
ATTEMPT = int(os.environ.get("GPU_PANEL_ATTEMPT", 1))


def points(count):
    generator = torch.Generator().manual_seed(count)
    x = torch.randn(count, 3, generator=generator, dtype=torch.float64) * 3 + 1
    return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))


@dataclass
class Judged(Task):
    """Regression; `scores` are the losses of the evaluations, in order."""

    scores: list[float] = field(default_factory=list)
    examples: int = 40
    held_out: int = 8
    eval_batch: int = 64
    trouble_at: int = 0
    "In the first attempt: the number of the call of `metrics` at which `trouble` happens."
    trouble: str = ""
    "oom, stop or kill."
    rank: int = 0
    "The rank on which it happens."
    norm: bool = False
    """Use BatchNorm, and have each rank write down its buffers in each evaluation. Another buffer
    counts in whole numbers, on each rank by another step, and is not contiguous."""
    plateau: bool = False
    record: str = ""

    def __post_init__(self) -> None:
        self.calls = 0

    def model(self) -> nn.Module:
        body = [nn.BatchNorm1d(3)] if self.norm else []
        self.net = nn.Sequential(*body, nn.Linear(3, 4), nn.Linear(4, 1)).double()
        self.net.register_buffer("turned", torch.zeros(2, 3, dtype=torch.long).t())
        return self.net

    def train_data(self):
        return points(self.examples)

    def eval_data(self):
        return points(self.held_out)

    def optimizer(self, model, lr):
        self.made = super().optimizer(model, lr)
        return self.made

    def schedule(self, optimizer, total_steps):
        if self.plateau:
            return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        return None

    def loss(self, model, batch):
        x, y = batch
        if self.record and model.training:
            with Path(f"{self.record}-{RANK}-{ATTEMPT}").open("a") as file:
                file.write(f"lr {self.made.param_groups[0]['lr']!r}\n")
        loss = (model(x) - y).square().mean()
        if self.norm:
            self.net.turned += 1 + RANK
        return loss

    def metrics(self, model, batch):
        self.calls += 1
        if self.calls == self.trouble_at and ATTEMPT == 1 and self.rank == RANK:
            self.have_trouble()
        x, y = batch
        if self.norm:
            with Path(f"{self.record}-{RANK}-{ATTEMPT}").open("a") as file:
                file.write(f"norm {model[0].running_mean.tolist()!r} "
                           f"{int(model.turned.sum())}\n")
        error = (model(x) - y).square().sum()
        score = self.scores[self.calls - 1] * len(x) if self.scores else error
        return {"loss": score, "count": len(x)}

    def have_trouble(self) -> None:
        if self.trouble == "oom":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 "
                                         "has a total capacity of 79.15 GiB")
        if self.trouble == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.trouble == "stop":
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.05)
