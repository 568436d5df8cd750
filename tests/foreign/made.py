"""Data and a model made up here, and how the programs tell what came of them."""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)


def examples(many: int = 32, dim: int = 4) -> TensorDataset:
    """x of shape (many, dim), y of shape (many, 1)."""
    x = torch.randn(many, dim, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, x.sum(1, keepdim=True).sin())


def loader(**how) -> DataLoader:
    """Four batches of eight."""
    return DataLoader(examples(), batch_size=8, **how)


def net(dim: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(dim, 8), nn.Tanh(), nn.Linear(8, 1))


def tell(name: str, value: object) -> None:
    """A line that must be the same with and without gpu-panel, to the last digit."""
    if isinstance(value, torch.Tensor):
        value = value.item()
    value = value.hex() if isinstance(value, float) else value
    sys.stdout.write(f"result {name} {value}\n")
    sys.stdout.flush()


def tell_weights(model: nn.Module) -> None:
    tell("weights", sum(p.detach().double().abs().sum() for p in model.parameters()))
