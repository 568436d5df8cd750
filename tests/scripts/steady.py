"""Trains for long, on two ranks if there are two, or under a profiler of its own (`own`)."""

import os
import sys
import time

import torch
import torch.distributed as dist

torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.01)


def train():
    for _ in range(10**6):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).mean().backward()
        optimizer.step()
        time.sleep(0.01)


if sys.argv[1:] == ["own"]:
    with torch.profiler.profile():
        train()
else:
    train()
