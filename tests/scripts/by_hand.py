"""Updates its parameters by hand, without an optimizer, as often as the first argument says."""

import sys
import time

import quick  # noqa: F401
import show
import torch

model = show.toy()
for _ in range(int(sys.argv[1])):
    loss = (model(torch.randn(16, 8)) - 1).square().mean()
    loss.backward()
    show.loss(loss)
    time.sleep(0.006)
    with torch.no_grad():
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-0.05)
    model.zero_grad()
show.weights(model)
