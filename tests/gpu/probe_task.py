"""A small, deterministic task for the GPU tests, which reads the GPU's own counters."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from gpu_engine import Task


@dataclass
class Probe(Task):
    """Learns the sign of a sum."""

    record: str = ""
    """The folder in which this rank writes what it has measured."""
    watch_sync: bool = False
    """Warn at every synchronisation between steps 5 and 40."""

    counts: bool = False
    """Return a sum and its count instead of the mean."""

    def __post_init__(self) -> None:
        self._calls = 0

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 2))

    def train_data(self) -> TensorDataset:
        made = torch.Generator().manual_seed(0)
        x = torch.randn(2048, 64, generator=made)
        return TensorDataset(x, (x.sum(1) > 0).long())

    def eval_data(self) -> TensorDataset:
        return self.train_data()

    def loss(self, model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        x, y = batch
        self._calls += 1
        if self.watch_sync and x.is_cuda:
            torch.cuda.set_sync_debug_mode("warn" if 5 <= self._calls < 40 else "default")
        out = model(x)
        if self.record and self._calls == 5:
            stats = torch.cuda.memory_stats(x.device)
            told = {"dtype": str(out.dtype), "device": str(x.device),
                    "peak": stats["allocated_bytes.all.peak"],
                    "reserved": stats["reserved_bytes.all.current"]}
            Path(self.record, f"{torch.cuda.current_device()}-{id(self)}.json").write_text(
                json.dumps(told))
        if self.counts:
            return functional.cross_entropy(out.float(), y, reduction="sum"), (y >= 0).sum()
        return functional.cross_entropy(out.float(), y)
