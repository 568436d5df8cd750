"""The task that bench/step.py trains: the engine's steps and steps of a loop by hand take turns."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.by_hand import train
from bench.tasks import Timed


@dataclass
class Beside(Timed):
    """In the middle of the engine's loop, a loop by hand trains a model of its own for as many
    steps as the engine before it. So both have the same process and the same moments of the
    machine."""

    block: int = 200
    """Steps at a time."""
    batch: int = 64
    """Examples a step and rank."""

    _seconds: list[tuple[float, ...]] = field(default_factory=list, init=False)
    """For each block: wall seconds of the engine and by hand, processor seconds of both."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._hand: ByHand | None = None

    def note(self) -> None:
        """Called as a step of the engine begins."""
        self._count += 1
        past = self._count - self.warm
        if past < 0 or past % self.block:
            return
        now = _clocks()
        if self._hand is None:
            self._hand = ByHand(self)
            self._threads = _threads()
        self._hand.steps(self.block if past else self.warm)
        after = _clocks()
        if past:
            engine, hand = ((b - a for a, b in zip(*pair, strict=True))
                            for pair in ((self._resumed, now), (now, after)))
            self._seconds.append((*engine, *hand))
        if self._count + self.block > self.steps:
            self._write(past)
        self._resumed = after

    def _write(self, steps: int) -> None:
        """Rank 0 writes what was measured, and the processor seconds a step of the engine's own
        threads, which may do a step's work later than in its block."""
        beside = _threads()
        spent = sum(beside.values()) - sum(self._threads.get(t, 0.0) for t in beside)
        if os.environ.get("RANK", "0") == "0":
            with open(self.out, "w") as file:  # noqa: PTH123
                json.dump({"blocks": self._seconds, "threads": spent / steps}, file)


class ByHand:
    """The loop by hand, with a model and an optimizer of its own."""

    def __init__(self, task: Beside) -> None:
        self._task = task
        self._ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() \
            else 1
        self._rank = torch.distributed.get_rank() if self._ranks > 1 else 0
        self._model: nn.Module = task.model()
        if self._ranks > 1:
            self._model = nn.parallel.DistributedDataParallel(self._model)
        self._optimizer = task.optimizer(self._model, 0.01)
        self._x, self._y = task.train_data().tensors

    def steps(self, count: int) -> None:
        """Train so many steps."""
        train(self._loss, self._optimizer, self._x, self._y, batch=self._task.batch,
              ranks=self._ranks, rank=self._rank, steps=count)

    def _loss(self, batch: list[Tensor]) -> Tensor:
        return functional.cross_entropy(self._model(batch[0]), batch[1])


def _threads() -> dict[int, float]:
    """Processor seconds of Python's threads beside this one."""
    here = threading.get_ident()
    return {t.ident: time.clock_gettime(time.pthread_getcpuclockid(t.ident))
            for t in threading.enumerate() if t.ident not in (None, here)}


def _clocks() -> tuple[float, float]:
    """Seconds on the wall, and processor seconds of this process without `_threads`."""
    return time.perf_counter(), time.process_time() - sum(_threads().values())
