"""The training loop as one would write it by hand: as fast as possible, without telemetry."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from itertools import islice

import torch
from torch import Tensor
from torch.optim import Optimizer

from bench.tasks import Timed


def steps(loss: Callable[[list[Tensor]], Tensor], optimizer: Optimizer, x: Tensor, y: Tensor, *,
          batch: int, ranks: int, rank: int) -> Iterator[None]:
    """Do one step each time that it is asked for the next one, as `rank` of `ranks`, with `batch`
    examples on each, without end. `loss`: of a batch."""
    while True:
        order = torch.randperm(len(x))
        for start in range(0, len(x) - batch * ranks + 1, batch * ranks):
            chosen = order[start + rank * batch:start + (rank + 1) * batch]
            loss([x[chosen], y[chosen]]).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            yield


def main() -> None:
    params, batch, ranks = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    task = Timed(**params)
    torch.manual_seed(0)
    model = task.model()
    rank = 0
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
        rank = torch.distributed.get_rank()
        model = torch.nn.parallel.DistributedDataParallel(model)
    x, y = task.train_data().tensors
    for _ in islice(steps(lambda examples: task.loss(model, examples), task.optimizer(model, 0.01),
                          x, y, batch=batch, ranks=ranks, rank=rank), task.steps):
        pass
    if ranks > 1:
        torch.distributed.destroy_process_group()
    os._exit(0)


if __name__ == "__main__":
    main()
