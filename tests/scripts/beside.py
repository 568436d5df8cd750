"""Steps of which some have no loss: their gradients come from torch.autograd.grad."""

import quick  # noqa: F401
import show
import torch

model = show.toy()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1, 25):
    loss = (model(torch.randn(16, 8)) - 1).square().mean()
    if step in (12, 13):
        grads = torch.autograd.grad(loss, list(model.parameters()))
        for p, grad in zip(model.parameters(), grads, strict=True):
            p.grad = grad
    else:
        optimizer.zero_grad()
        loss.backward()
        show.loss(loss.detach(), f"step {step}")
    optimizer.step()
show.weights(model)
