"""Held-out examples of several kinds, with random numbers in the dataset and in the metrics."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info
from toy import Numbers, Toy


class Outside:
    def set_epoch(self, epoch):
        raise AssertionError("an evaluation belongs to no epoch")


class Seen(Outside, Numbers):
    """Notes for each example whether a loader worker has read it."""

    def __getitem__(self, i: int):
        noise = torch.randn(6, dtype=self.x.dtype) * random.random()
        return self.x[i] + noise, self.y[i], i, int(get_worker_info() is not None)


class Stream(Outside, IterableDataset):
    divided_by = "nothing"

    def __init__(self, data: Seen) -> None:
        self.data = data

    def mine(self):
        return range(len(self.data))

    def __iter__(self):
        return (self.data[i] for i in self.mine())


class ByWorker(Stream):
    divided_by = "workers"

    def mine(self):
        info = get_worker_info()
        return range(info.id, len(self.data), info.num_workers) if info else super().mine()


class ByRankAndWorker(Stream):
    divided_by = "both"

    def mine(self):
        rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        return range(rank * workers + worker, len(self.data), ranks * workers)


@dataclass
class Held(Toy):
    kind: str = ""

    def eval_data(self):
        data = self.still = Seen(self.held_out, 6, 0.0, self.dtype)
        return globals()[self.kind](data) if self.kind else data

    def metrics(self, model, batch):
        x, y, numbers, in_worker = batch
        error, drawn = (model(x) - y).square(), torch.rand(len(x))
        with Path(self.record, "drawn").open("a") as file:
            file.write(f"{float((x - self.still.x[numbers])[0, 0]):.9f} {float(drawn[0]):.9f}\n")
        return {"loss": error.sum(), "numbers": numbers.sum(), "in_worker": in_worker.sum(),
                "drawn": drawn.sum(), "count": len(x)}
