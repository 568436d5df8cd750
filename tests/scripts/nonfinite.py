"""A loss that is not finite from some step on, of many quick ones."""

import sys

import quick  # noqa: F401
import show
import torch

at = int(sys.argv[1])
model = show.toy()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, 400):
    loss = (model(torch.randn(4, 8)) - 1).square().mean()
    if step == at:
        loss = loss * float("nan")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
