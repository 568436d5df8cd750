"""A task that writes down the random numbers its rank draws from every global generator."""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from gpu_engine import Task

RANK = int(os.environ.get("RANK", 0))
ATTEMPT = int(os.environ.get("GPU_PANEL_ATTEMPT", 1))


@dataclass
class Draws(Task):
    record: str = ""
    die_at: int = 0
    "In the first attempt: the pass at which each rank ends itself."

    def __post_init__(self) -> None:
        self._calls = 0

    def _write(self, name: str, what: object) -> None:
        with Path(self.record, f"{name}-{RANK}-{ATTEMPT}.jsonl").open("a") as file:
            file.write(json.dumps(what) + "\n")

    def model(self) -> nn.Module:
        net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        # Written here, as DDP later replaces them by rank 0's weights.
        self._write("weights", [p.detach().flatten().tolist() for p in net.parameters()])
        return net

    def train_data(self):
        made = torch.Generator().manual_seed(5)
        return torch.utils.data.TensorDataset(torch.randn(48, 4, generator=made),
                                              torch.arange(48))

    def loss(self, model, batch):
        x, numbers = batch
        self._calls += 1
        if ATTEMPT == 1 and self._calls == self.die_at:
            os._exit(9)
        mask = model.module[1] if hasattr(model, "module") else model[1]
        self._write("drawn", {
            "python": random.random(), "gauss": random.gauss(0, 1),
            "torch": torch.rand(()).item(), "numpy": np.random.rand(),
            "numpy_gauss": np.random.randn(), "numbers": numbers.tolist(),
            "dropout": mask(torch.ones(16)).tolist()})
        return model(x).square().mean()
