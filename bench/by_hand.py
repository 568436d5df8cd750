"""The training loop as one would write it by hand: as fast as possible, without telemetry."""

from __future__ import annotations

import json
import os
import sys

import torch

from bench.tasks import Timed


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
    optimizer = task.optimizer(model, 0.01)
    x, y = task.train_data().tensors
    step = 0
    while step < task.steps:
        order = torch.randperm(len(x))
        for start in range(0, len(x) - batch * ranks + 1, batch * ranks):
            chosen = order[start + rank * batch:start + (rank + 1) * batch]
            loss = task.loss(model, [x[chosen], y[chosen]])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            if step == task.steps:
                break
    if ranks > 1:
        torch.distributed.destroy_process_group()
    os._exit(0)


if __name__ == "__main__":
    main()
