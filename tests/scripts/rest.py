"""Accumulates two batches a step, of five in an epoch. With "carried" the gradients of the last one
are kept for the next epoch, with "stepped" they make a step, and with "probed" so do all of four
batches, before a call of backward() whose gradients are looked at."""

import sys

import quick  # noqa: F401
import show
import torch
import torch._prims.rng_prims
from torch.utils.data import DataLoader, TensorDataset

model = show.toy()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
examples = 16 if "probed" in sys.argv else 20
loader = DataLoader(TensorDataset(torch.randn(examples, 8)), batch_size=4)
for _ in range(4):
    if "carried" not in sys.argv:
        optimizer.zero_grad()
    for i, (x,) in enumerate(loader):
        loss = (model(x) - 1).square().mean()
        loss.backward()
        if (i + 1) % 2 == 0 or ("stepped" in sys.argv and i == 4):
            optimizer.step()
            optimizer.zero_grad()
    if "probed" in sys.argv:
        model(torch.randn(4, 8)).square().mean().backward()
show.weights(model)
