"""Held-out examples of several kinds, with random numbers in the dataset and in the metrics."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import torch
import toy
from torch.utils.data import get_worker_info


class Outside:
    def set_epoch(self, epoch):
        raise AssertionError("an evaluation belongs to no epoch")


class Seen(Outside, toy.Numbers):
    """Notes for each example whether a loader worker has read it."""

    def __getitem__(self, i: int):
        noise = torch.randn(6, dtype=self.x.dtype) * random.random()
        return self.x[i] + noise, self.y[i], i, int(get_worker_info() is not None)


class Stream(Outside, toy.Stream):
    divided_by = "nothing"


class ByWorker(Stream):
    divided_by = "workers"

    def mine(self):
        info = get_worker_info()
        return range(info.id, len(self.data), info.num_workers) if info else super().mine()


class ByRankAndWorker(Outside, toy.ByRankAndWorker):
    pass


@dataclass
class Held(toy.Toy):
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
