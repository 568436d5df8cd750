"""Two ranks that train together or each by itself, as the words on the command line say:

group, ddp, fsdp: make a process group; wrap the model; divide it
by_hand: average the gradients without DistributedDataParallel
module: call the model inside of DistributedDataParallel, which then exchanges nothing
sampler, set_epoch: divide the data; in another order each epoch
one_part, one_replica: a sampler that gives all ranks the same part, or everything
shard: each rank has other data of its own
divides: the data set divides itself, as an example is asked for
drawn: an own data set that does not, in an order that is drawn anew
validate: a data set that no rank divides is evaluated, after every step
save, rank0: all ranks save, or only rank 0
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


class Own(TensorDataset):
    def __len__(self):
        return super().__len__() // (world if "divides" in words else 1)

    def __getitem__(self, i):
        return super().__getitem__(i * world + rank if "divides" in words else i)


if words & {"divides", "drawn"}:
    data = Own(*data.tensors)
if "shard" in words:
    data = Subset(data, range(rank, 64, world))
how = {"rank": 0} if "one_part" in words else {}
if "one_replica" in words:
    how = {"rank": 0, "num_replicas": 1}
sampler = DistributedSampler(data, **how) if "sampler" in words else None
loader = DataLoader(data, batch_size=4, sampler=sampler, shuffle="drawn" in words)
held_out = DataLoader(TensorDataset(torch.zeros(8, 8)), batch_size=4)
for epoch in range(epochs):
    if "set_epoch" in words:
        sampler.set_epoch(epoch)
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
if "save" in words or ("rank0" in words and rank == 0):
    torch.save(optimizer.state_dict(), f"{os.environ['OUT']}/weights.pt")
if "group" in words:
    dist.barrier()
    time.sleep(0.3)  # see ddp.py
    dist.destroy_process_group()
