"""The task that bench/step.py trains: the engine's steps and steps of a loop by hand take turns."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from bench.by_hand import steps
from bench.tasks import Timed


@dataclass
class Beside(Timed):
    """In the middle of the engine's loop, a loop by hand trains the same model with the same
    optimizer for as many steps as the engine before it. With a model of its own it would be up to
    5 % faster or slower, for as long as the process lives, by where that happens to lie in memory.
    Under DDP it does so twice: with a DDP of its own, made as one makes it, and with the engine's,
    whose `gradient_as_bucket_view` saves a copy of all gradients in each step.

    The first step of each turn is not timed: what it needs has left the processor's caches, as it
    would not if one loop trained alone.
    """

    block: int = 10
    """Steps at a time; one less is timed."""
    batch: int = 64
    """Examples a step and rank."""
    twice: bool = False
    """Have a loop by hand take the engine's place in what is measured: what comes out is noise."""

    _blocks: list[list[tuple[float, float]]] = field(default_factory=list, init=False)
    """For each block, wall and processor seconds of the engine and of each loop by hand."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._hands: list[Iterator[None]] = []
        self._resumed = _clocks()
        self._threads: dict[int, float] = {}

    def optimizer(self, model: nn.Module, lr: float) -> Optimizer:
        self._optimizer = super().optimizer(model, lr)
        return self._optimizer

    def loss(self, model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        self._count += 1
        past = self._count - self.warm
        if past >= 0 and past % self.block == 0:
            self._turn(model, past)
        elif past >= 0 and past % self.block == 1:
            self._resumed = _clocks()
        return functional.cross_entropy(model(batch[0]), batch[1])

    def _turn(self, model: nn.Module, past: int) -> None:
        """The turns of the loops by hand, after the engine's; `past`: steps that are measured."""
        engine = _since(self._resumed)
        if not self._hands:
            models = [model]
            if isinstance(model, DistributedDataParallel):
                # Both stay attached to the parameters. One that had no forward pass does nothing.
                models.insert(0, DistributedDataParallel(model.module))
            self._hands = [self._by_hand(each) for each in models]
            self._threads = _threads()
        if self.twice:
            engine = self._timed(self._hands[0])
        # Each loop by hand comes first as often as last.
        order = range(len(self._hands))[::1 if past // self.block % 2 else -1]
        hands = {at: self._timed(self._hands[at]) for at in order}
        if past:
            self._blocks.append([engine, *(hands[at] for at in sorted(hands))])
        if self._count + self.block > self.steps:
            self._write(past)

    def _timed(self, hand: Iterator[None]) -> tuple[float, float]:
        """The seconds of one turn of a loop by hand."""
        next(hand)
        began = _clocks()
        for _ in range(self.block - 1):
            next(hand)
        return _since(began)

    def _by_hand(self, model: nn.Module) -> Iterator[None]:
        several = torch.distributed.is_initialized()
        x, y = self.train_data().tensors
        return steps(lambda batch: functional.cross_entropy(model(batch[0]), batch[1]),
                     self._optimizer, x, y, batch=self.batch,
                     ranks=torch.distributed.get_world_size() if several else 1,
                     rank=torch.distributed.get_rank() if several else 0)

    def _write(self, past: int) -> None:
        """Rank 0 writes what was measured, and the processor seconds a step of the engine's own
        threads, which may do a step's work later than in its block."""
        beside = _threads()
        spent = sum(beside.values()) - sum(self._threads.get(t, 0.0) for t in beside)
        if os.environ.get("RANK", "0") == "0":
            with open(self.out, "w") as file:  # noqa: PTH123
                json.dump({"blocks": self._blocks, "threads": spent / past}, file)


def _threads() -> dict[int, float]:
    """Processor seconds of Python's threads beside this one."""
    here = threading.get_ident()
    return {t.ident: time.clock_gettime(time.pthread_getcpuclockid(t.ident))
            for t in threading.enumerate() if t.ident not in (None, here)}


def _clocks() -> tuple[float, float]:
    """Seconds on the wall, and processor seconds of this process without `_threads`."""
    return time.perf_counter(), time.process_time() - sum(_threads().values())


def _since(began: tuple[float, float]) -> tuple[float, float]:
    """The seconds since `began`, by the same clocks."""
    wall, processor = _clocks()
    return wall - began[0], processor - began[1]
