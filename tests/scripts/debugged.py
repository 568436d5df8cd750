"""Two ranks, of which rank 1 stops in the debugger where the arguments say."""
# ruff: noqa: T201

import os
import sys
import time
from datetime import timedelta

import quick  # noqa: F401
import torch
import torch._prims.rng_prims
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
short = {"timeout": timedelta(seconds=3)} if "short" in sys.argv else {}
dist.init_process_group("gloo", **short)
rank = dist.get_rank()
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1, bias=False))
with torch.no_grad():
    model.module.weight.fill_(0.5)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
draw = torch.Generator().manual_seed(rank)


class Data(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        if "worker" in sys.argv and i == 2 and rank == 1:
            breakpoint()
        return torch.zeros(4)


list(DataLoader(Data(), num_workers=1))
for step in range(8):
    if step == 3 and rank == 1 and "break" in sys.argv:
        breakpoint()
    if step == 3 and rank == 1 and "loop" in sys.argv:
        print("loops", flush=True)
        while "loop" in sys.argv:
            time.sleep(0.01)
    loss = model(torch.randn(8, 4, generator=draw)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 5 and rank == 1 and "raise" in sys.argv:
        raise RuntimeError("boom")
print("over", dist.get_world_size(), os.environ["RANK"])
time.sleep(0.3)  # as in ddp.py
dist.destroy_process_group()
