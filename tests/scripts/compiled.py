"""Runs a step, with or without its optimizer, inside torch.compile; prints how often it was
compiled."""
# ruff: noqa: T201

import frozen
import show
import torch

with frozen.imports():
    import torch._dynamo.utils

model = show.toy()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


@torch.compile(backend="aot_eager")
def step(x):
    loss = (model(x) - 1).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


for _ in range(6):
    show.loss(step(torch.randn(16, 8)))
print(dict(torch._dynamo.utils.counters["stats"]), len(torch._dynamo.utils.counters["graph_break"]))
show.weights(model)
