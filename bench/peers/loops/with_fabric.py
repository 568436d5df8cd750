"""The loop with Lightning's Fabric."""

import os

import work
from lightning.fabric import Fabric
from torch.nn import functional
from torch.optim import SGD

# Under `fabric run` its options are in the environment.
fabric = Fabric() if "LT_CLI_USED" in os.environ else Fabric(accelerator="cpu", devices=1)
work.settle(fabric.world_size)
model = work.model()
model, optimizer = fabric.setup(model, SGD(model.parameters(), lr=work.RATE))
batches = fabric.setup_dataloaders(work.loader(fabric.global_rank, fabric.world_size),
                                   use_distributed_sampler=False)
marks, goes_on = work.Marks(), True
while goes_on:
    for x, y in batches:
        goes_on = marks.step()
        if not goes_on:
            break
        loss = functional.cross_entropy(model(x), y)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
