"""Updates its parameters by hand, without an optimizer. The first argument is the number of
updates; with an "a" behind it, the gradients of four passes are accumulated."""

import sys
import time

import quick  # noqa: F401
import show
import torch

model = show.toy()
count, accumulate, _ = sys.argv[1].partition("a")
for i in range(int(count)):
    loss = (model(torch.randn(16, 8)) - 1).square().mean()
    loss.backward()
    show.loss(loss)
    time.sleep(0.006)
    if accumulate and (i + 1) % 4:
        continue
    with torch.no_grad():
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-0.05)
    model.zero_grad()
show.weights(model)
