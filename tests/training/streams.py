"""Iterable datasets that divide themselves in the ways people write, and a rank that reads them.

    python streams.py RANK WORLD STORE OUT

reads two epochs of each dataset as that rank, with each number of loader workers in `workers_of`,
and writes what it has read to OUT as JSON.
"""

from __future__ import annotations

import json
import os
import queue
import random
import sys
import threading
from datetime import timedelta
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import ChainDataset, IterableDataset, get_worker_info

from gpu_engine import Task

MICRO = 3
EXAMPLES = 36
MANY, FEW = (0, 1, 3), (0, 2)


def example(i: int):
    """An example with random numbers, drawn as an augmentation would."""
    return i, (torch.rand(()).item(), random.random(), np.random.rand())


class Plain(IterableDataset):
    """Divides nothing."""

    divided_by = "nothing"

    def __init__(self, numbers=range(EXAMPLES)) -> None:
        self.numbers, self.epoch = numbers, -1

    def mine(self):
        return self.numbers

    def __iter__(self):
        return (example(i) for i in self.mine())


class Shuffled(Plain):
    """Shuffles by the global generator of `random`."""

    def mine(self):
        numbers = list(self.numbers)
        random.shuffle(numbers)
        return numbers


class Buffered(Plain):
    """Shuffles in a buffer, by the global generator of torch, between its examples."""

    def mine(self):
        numbers = iter(self.numbers)
        buffer = list(islice(numbers, 10))
        for i in numbers:
            at = int(torch.randint(10, ()))
            yield buffer[at]
            buffer[at] = i
        yield from buffer


class ByEpoch(Plain):
    """Its order depends on the epoch alone."""

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def mine(self):
        numbers = list(self.numbers)
        random.Random(self.epoch).shuffle(numbers)
        return [n + 1000 * self.epoch for n in numbers]


class ByWorker(Plain):
    """PyTorch's documented pattern: each worker reads a contiguous part."""

    divided_by = "workers"

    def mine(self):
        info = get_worker_info()
        if info is None:
            return self.numbers
        each = -(-len(self.numbers) // info.num_workers)
        return self.numbers[info.id * each:(info.id + 1) * each]


class ShuffledByWorker(Plain):
    """Shuffles by the global generator first, then takes its worker's part, both only when it is
    asked for its first example."""

    divided_by = "workers"

    def __iter__(self):
        yield from super().__iter__()

    def mine(self):
        numbers = list(self.numbers)
        random.shuffle(numbers)
        info = torch.utils.data.get_worker_info()
        return numbers[info.id::info.num_workers] if info else numbers


class ByRankAndWorker(Plain):
    divided_by = "both"

    def mine(self):
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        return self.numbers[self.rank() * workers + worker::self.world() * workers]

    def rank(self) -> int:
        return dist.get_rank() if dist.is_initialized() else 0

    def world(self) -> int:
        return dist.get_world_size() if dist.is_initialized() else 1


class ByEnvironment(ByRankAndWorker):
    """Reads rank and worker the way WebDataset does."""

    def rank(self) -> int:
        return int(os.environ["RANK"]) if "RANK" in os.environ else 0

    def world(self) -> int:
        return int(os.getenv("WORLD_SIZE", "1"))


class ByRank(ByRankAndWorker):
    """Gives its rank's part, the same in each worker."""

    divided_by = "ranks"

    def mine(self):
        return self.numbers[self.rank()::self.world()]


class InThread(ByRankAndWorker):
    """Reads ahead in a thread of its own, which reads the rank and worker."""

    def __iter__(self):
        ahead = queue.Queue()

        def read() -> None:
            for i in self.mine():
                ahead.put(i)
            ahead.put(None)

        threading.Thread(target=read).start()
        return map(example, iter(ahead.get, None))


class RankWhenMade(Plain):
    """Takes its rank's part when it is made."""

    divided_by = "ranks"

    def __init__(self) -> None:
        super().__init__(range(dist.get_rank(), EXAMPLES, dist.get_world_size()))


KINDS = [Plain, Shuffled, Buffered, ByEpoch, ByWorker, ShuffledByWorker, ByRankAndWorker,
         ByEnvironment, ByRank, InThread, RankWhenMade]


def workers_of(name: str) -> tuple[int, ...]:
    """The numbers of loader workers to read it with. Each takes processes, so only the main ways to
    divide are read with all of them."""
    return MANY if name in ("Plain", "ByWorker", "ByRankAndWorker") else FEW


def chained() -> IterableDataset:
    made: Any = ChainDataset([Plain(range(20)), Plain(range(20, EXAMPLES))])
    made.divided_by = "nothing"
    return made


def collate(examples):
    """Draws random numbers too, as a collator that masks words does."""
    return [n for n, _ in examples], [d for _, d in examples], torch.rand(()).item()


class Numbers(Task):
    collate = staticmethod(collate)


def read(make, rank: int, world: int, workers: int) -> list:
    from gpu_engine.training.stream import StreamData

    def start_all_reduce_sum(cell: torch.Tensor):
        work = dist.all_reduce(cell, async_op=True)
        return lambda: (work.wait(), cell)[1]

    group: Any = SimpleNamespace(rank=rank, size=world, barrier=dist.barrier,
                                 start_all_reduce_sum=start_all_reduce_sum)
    stream = StreamData(make(), Numbers(), micro=MICRO, accumulate=1, workers=workers, seed=7,
                        device=torch.device("cpu"), group=group)
    outside = torch.get_rng_state(), random.getstate()
    epochs = [list(stream.epoch(epoch)) for epoch in range(2)]
    assert torch.equal(torch.get_rng_state(), outside[0])
    assert random.getstate() == outside[1]
    return epochs


def main() -> None:
    rank, world, store, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.set_num_threads(1)
    if world > 1:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world)}
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank,
                            world_size=world, timeout=timedelta(seconds=120))
    seeds = random.Random(rank)  # ranks' own generators differ
    found = {}
    for make in [*KINDS, chained]:
        for workers in workers_of(make.__name__):
            torch.manual_seed(seeds.getrandbits(40))
            random.seed(seeds.getrandbits(40))
            found[f"{make.__name__} {workers}"] = read(make, rank, world, workers)
    Path(out).write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
