"""The work that every loop does, and how it is timed: a step of about 1 ms on one thread.

The environment says what to do: LOOP_STEPS, of which the first LOOP_WARM are not timed, LOOP_OUT,
the file to which rank 0 writes what it has measured, LOOP_RANKS, how many ranks there must be, and
LOOP_HIDDEN, the widths of the hidden layers.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler
from torch.utils.data.distributed import DistributedSampler

STEPS, WARM = int(os.environ["LOOP_STEPS"]), int(os.environ["LOOP_WARM"])
BATCH, EXAMPLES, RATE = 64, 16384, 0.01
EPOCHS = 1_000_000
"""More than are needed: the number of steps ends a loop."""


class Examples(Dataset):
    """Random examples. A whole batch is taken at once, so that collecting it is not the step."""

    def __init__(self) -> None:
        made = torch.Generator().manual_seed(0)
        self.x = torch.randn(EXAMPLES, 784, generator=made)
        self.y = torch.randint(10, (EXAMPLES,), generator=made)

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[row], self.y[row]

    def __getitems__(self, rows: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[rows], self.y[rows]


def model() -> nn.Module:
    torch.manual_seed(0)
    widths = [784, *map(int, os.environ.get("LOOP_HIDDEN", "256").split(","))]
    hidden = [layer for ins, outs in itertools.pairwise(widths)
              for layer in (nn.Linear(ins, outs), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(widths[-1], 10))


def loader(rank: int, ranks: int) -> DataLoader:
    """The batches of one rank; with `ranks` 1 all of them."""
    data = Examples()
    order: Sampler = RandomSampler(data)
    if ranks > 1:
        order = DistributedSampler(data, num_replicas=ranks, rank=rank)
    return DataLoader(data, BATCH, sampler=order, drop_last=True, collate_fn=_as_it_is)


def _as_it_is(batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return batch


class Marks:
    """The moments of a loop."""

    def __init__(self) -> None:
        self._count = 0
        self._first = self._began = self._cpu = 0.0

    def step(self) -> bool:
        """Called as a step begins. Returns False once all steps are done."""
        self._count += 1
        if self._count == 2:
            self._first = time.time()
            self._write({"first": self._first})
        if self._count == WARM + 1:
            self._began, self._cpu = time.perf_counter(), time.process_time()
        if self._count == STEPS + 1:
            steps = STEPS - WARM
            self._write({"first": self._first,
                         "step": (time.perf_counter() - self._began) / steps,
                         "cpu": (time.process_time() - self._cpu) / steps})
        return self._count <= STEPS

    def _write(self, found: dict[str, float]) -> None:
        # Lightning tells a rank that it starts only its local rank.
        if os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0":
            out = Path(os.environ["LOOP_OUT"])
            new = out.with_suffix(".new")
            new.write_text(json.dumps(found))
            new.replace(out)


def settle(ranks: int) -> None:
    """One thread, and one that trains alone keeps to a core. Of several ranks none does: threads of
    gloo that begin before would not keep to it, and some programs begin them before, some after.
    `ranks`: how many there are for the program."""
    if ranks != int(os.environ.get("LOOP_RANKS", "1")):
        raise SystemExit(f"{ranks} ranks train together, not {os.environ['LOOP_RANKS']}")
    torch.set_num_threads(1)
    if ranks == 1:
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
