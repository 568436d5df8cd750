"""Small tasks for tests, which write down what they see and fail on request."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from gpu_engine import Task, log

RANK = int(os.environ.get("RANK", 0))
ATTEMPT = int(os.environ.get("GPU_PANEL_ATTEMPT", 1))


class Numbers(Dataset):
    """Examples by number, with random noise added as augmentation would."""

    def __init__(self, examples: int, dim: int, noise: float, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(examples, dim, generator=generator, dtype=dtype)
        self.y = self.x.sum(1, keepdim=True).sin()
        self.noise = noise
        self.hold = ""

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int):
        wait_for(self.hold)
        x = self.x[i]
        if self.noise:
            x = x + self.noise * torch.randn(x.shape, dtype=x.dtype)
        return x, self.y[i], i


class Stream(IterableDataset):
    divided_by = "nothing"

    def __init__(self, data: Numbers) -> None:
        self.data = data

    def mine(self):
        return range(len(self.data))

    def __iter__(self):
        return (self.data[i] for i in self.mine())


class ByEpoch(Stream):
    """In its epoch's order."""

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def mine(self):
        return random.Random(self.epoch).sample(range(len(self.data)), len(self.data))


class ByRankAndWorker(Stream):
    """Divides itself in the usual ways."""

    divided_by = "both"

    def mine(self):
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        return range(rank * workers + worker, len(self.data), ranks * workers)


class Silent(Stream):
    """Does not say what it divides itself by."""

    divided_by = None


def generator(data: Numbers):
    """Not a dataset, as it can be read only once."""
    return (example for example in data)


def wait_for(file: str) -> None:
    """Wait until a file is gone; "" for no wait."""
    while file and Path(file).exists():
        time.sleep(0.005)


def hold_saves(while_there: Path) -> None:
    """Imitate a slow disk in this process: os.fsync returns only once the file is gone."""
    sync = os.fsync

    def slow(fd: int) -> None:
        wait_for(str(while_there))
        sync(fd)

    os.fsync = slow


@dataclass
class Toy(Task):
    """Regression of 6 numbers on one."""

    examples: int = 240
    "How many examples there are."
    held_out: int = 0
    hidden: int = 16
    double: bool = True
    dropout: float = 0.0
    frozen: bool = False
    "Whether `model` returns it in evaluation mode, as libraries that load weights do."
    noise: float = 0.0
    stream: bool = False
    stream_kind: str = "Stream"
    "The name of the dataset's class above."
    stream_held: bool = False
    "Whether the held-out data is such a stream, too."
    schedule_rate: bool = False
    big: int = 0
    "Further weights that do not learn, to make checkpoints larger."
    record: str = ""
    "Folder in which each rank writes the loss and example numbers of each backward pass."
    pause: float = 0.0
    "Seconds by which a training step is made longer."
    die_at: int = 0
    "In the first attempt: the backward pass at which rank `rank` kills itself."
    raise_at: int = 0
    nan_at: int = 0
    oom_at: int = 0
    hold_saves: str = ""
    "A file: as long as it is there, the data of a checkpoint does not reach the disk."
    odd_state: str = ""
    "An additional value in the optimizer's state: a numpy scalar, or a path."
    little_memory: bool = False
    "Whether the machine seems to have no memory to spare."
    hold_data: str = ""
    "A file: as long as it is there, `train_data` of rank `rank` does not return."
    fail_data: bool = False
    "Whether `train_data` of rank `rank` fails."
    hold_item: str = ""
    "A file: as long as it is there, rank `rank` does not get its first example."
    rank: int = 0
    "The rank for the fields above that happen on one rank."

    def __post_init__(self) -> None:
        self.calls = 0
        if self.hold_saves:
            hold_saves(Path(self.hold_saves))
        if self.little_memory:
            from gpu_engine.devices import host

            host.memory = lambda: (1000, 2000)
        self.dtype = torch.float64 if self.double else torch.float32

    def model(self) -> nn.Module:
        net = nn.Sequential(nn.Linear(6, self.hidden), nn.Tanh(), nn.Dropout(self.dropout),
                            nn.Linear(self.hidden, 1)).to(self.dtype)
        if self.big:
            net.register_parameter("ballast", nn.Parameter(torch.zeros(self.big),
                                                           requires_grad=False))
        return net.eval() if self.frozen else net

    def train_data(self):
        data = Numbers(self.examples, 6, self.noise, self.dtype)
        if self.rank == RANK:
            wait_for(self.hold_data)
            if self.fail_data:
                raise OSError("no such data")
            data.hold = self.hold_item
        return globals()[self.stream_kind](data) if self.stream else data

    def eval_data(self):
        if not self.held_out:
            return None
        data = Numbers(self.held_out, 6, 0.0, self.dtype)
        return globals()[self.stream_kind](data) if self.stream_held else data

    def optimizer(self, model, lr):
        made = super().optimizer(model, lr)
        if self.odd_state == "numpy":
            import numpy

            made.param_groups[0]["odd"] = numpy.float64(lr)
        elif self.odd_state:
            made.param_groups[0]["odd"] = Path("odd")
        return made

    def schedule(self, optimizer, total_steps):
        if not self.schedule_rate:
            return None
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1.0 / (1 + s))

    def loss(self, model, batch):
        x, y, numbers = batch
        loss = (model(x) - y).square().mean()
        if model.training:
            self.calls += 1
            loss = self.trouble(loss)
            if self.record:
                with Path(self.record, f"{RANK}-{ATTEMPT}.txt").open("a") as file:
                    shown = ",".join(map(str, numbers.tolist()))
                    file.write(f"{float(loss).hex()} {shown}\n")
            log(twice=2 * loss)
        return loss

    def trouble(self, loss):
        time.sleep(self.pause)
        if self.rank != RANK or ATTEMPT != 1:
            return loss
        if self.calls == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.calls == self.raise_at:
            raise ArithmeticError("as the test wants it")
        if self.calls == self.oom_at:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 "
                                         "has a total capacity of 79.15 GiB")
        return loss * float("nan") if self.calls == self.nan_at else loss

    def metrics(self, model, batch):
        x, y, numbers = batch
        error = (model(x) - y).square()
        return {"loss": error.sum(), "numbers": numbers.sum(), "count": len(x)}
