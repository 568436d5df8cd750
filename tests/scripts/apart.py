"""Two ranks that train together or each by itself, as the words on the command line say:

group, ddp, fsdp: make a process group; wrap the model; divide it
by_hand: average the gradients without DistributedDataParallel
module: call the model inside of DistributedDataParallel, which then exchanges nothing
sampler, set_epoch: divide the data; in another order each epoch
first: tell the sampler the first epoch each time, as trainings of one epoch do
average, metric: average the parameters every 30 steps; a number each tenth epoch
same: the sampler has the same rank everywhere
shard: each rank has other data of its own
validate: a data set that no rank divides is evaluated, after every step
save: all ranks save
"""

import os
import sys
import time

if "fsdp" not in sys.argv:
    import quick  # noqa: F401
import show
import torch
import torch._prims.rng_prims
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

words = set(sys.argv[1:])
epochs = int(os.environ.get("EPOCHS", "4"))
torch.set_num_threads(1)
rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
if "group" in words:
    dist.init_process_group("gloo")
model = show.toy()
if "ddp" in words:
    model = torch.nn.parallel.DistributedDataParallel(model)
if "fsdp" in words:
    from torch.distributed.fsdp import fully_shard

    fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = TensorDataset(torch.randn(64, 8, generator=torch.Generator().manual_seed(1)))
if "shard" in words:
    data = Subset(data, range(rank, 64, world))
sampler = DistributedSampler(data, rank=0 if "same" in words else None) \
    if "sampler" in words else None
loader = DataLoader(data, batch_size=4, sampler=sampler)
held_out = DataLoader(TensorDataset(torch.zeros(8, 8)), batch_size=4)
steps = 0
for epoch in range(epochs):
    if "set_epoch" in words:
        sampler.set_epoch(0 if "first" in words else epoch)
    for (x,) in loader:
        loss = ((model.module if "module" in words else model)(x) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if "by_hand" in words:
            for p in model.parameters():
                dist.all_reduce(p.grad)
        optimizer.step()
        if rank == 0:
            show.loss(loss)
        if "validate" in words:
            with torch.no_grad():
                [model(y) for (y,) in held_out]
        steps += 1
        if "average" in words and steps % 30 == 0:
            for p in model.parameters():
                dist.all_reduce(p.data)
    if "metric" in words and epoch % 10 == 0:
        dist.all_reduce(loss.detach())
if "save" in words:
    torch.save(optimizer.state_dict(), f"{os.environ['OUT']}/weights.pt")
if "group" in words:
    dist.barrier()
    time.sleep(0.3)  # see ddp.py
    dist.destroy_process_group()
