"""The loop as one writes it by hand, alone or under DDP."""

import os

import torch
import work
from torch.nn import functional

ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
work.settle(ranks)
model = work.model()
if ranks > 1:
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=work.RATE)
batches, marks = work.loader(rank, ranks), work.Marks()
goes_on = True
while goes_on:
    for x, y in batches:
        goes_on = marks.step()
        if not goes_on:
            break
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
if ranks > 1:
    torch.distributed.destroy_process_group()
