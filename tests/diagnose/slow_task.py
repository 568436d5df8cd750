"""A task of which one rank's data is slow to read."""

from __future__ import annotations

import os
import time

import torch
from torch.utils.data import Dataset

from gpu_engine import Task


class Data(Dataset):
    def __len__(self) -> int:
        return 4000

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        if os.environ.get("RANK") == "1":
            time.sleep(0.02)
        return torch.ones(8), torch.ones(1)


class Slow(Task):
    def model(self) -> torch.nn.Module:
        return torch.nn.Linear(8, 1)

    def train_data(self) -> Data:
        return Data()

    def loss(self, model: torch.nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        x, y = batch
        return (model(x) - y).square().mean()
