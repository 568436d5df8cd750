"""The task that bench/save.py trains: a model of any size, of which a small part is trained."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from gpu_engine import Task


@dataclass
class Heavy(Task):
    """Steps of about 20 ms, with `gigabytes` of weights. Writes its measurements to `out`."""

    gigabytes: float = 1.0
    """Size of the weights in units of 1e9 bytes."""
    out: str = ""
    """The file for the times of the steps and the peak memory."""

    def __post_init__(self) -> None:
        self._times: list[float] = []
        self._most = {"RssAnon": 0, "VmRSS": 0}
        threading.Thread(target=self._watch, daemon=True).start()

    def model(self) -> nn.Module:
        net = nn.Sequential(nn.Linear(784, 1216), nn.ReLU(), nn.Linear(1216, 1216), nn.ReLU(),
                            nn.Linear(1216, 10))
        for number in range(10):
            net.register_parameter(f"ballast{number}", nn.Parameter(
                torch.full((int(self.gigabytes * 25e6),), 0.5), requires_grad=False))
        return net

    def train_data(self) -> TensorDataset:
        made = torch.Generator().manual_seed(0)
        return TensorDataset(torch.randn(16384, 784, generator=made),
                             torch.randint(10, (16384,), generator=made))

    def loss(self, model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        self._times.append(time.time())
        with Path(self.out).open("w") as file:
            json.dump({"times": self._times, "most": self._most}, file)
        return functional.cross_entropy(model(batch[0]), batch[1])

    def optimizer(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=lr)

    def _watch(self) -> None:
        while True:
            for line in Path("/proc/self/status").read_text().splitlines():
                name, _, value = line.partition(":")
                if name in self._most:
                    self._most[name] = max(self._most[name], int(value.split()[0]) * 1024)
            time.sleep(0.01)
