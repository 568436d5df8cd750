"""Calls torch.autograd.backward on several tensors, on a vector with weights, and from inside a
backward pass (reentrant checkpointing)."""

import quick  # noqa: F401
import show
import torch
from torch.utils.checkpoint import checkpoint

model = show.toy()
head = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=0.01)
for step in range(9):
    x = torch.randn(16, 8, requires_grad=True)
    a = (checkpoint(model, x, use_reentrant=True) - 1).square().mean()
    b = head(x).square().mean()
    if step % 3 == 0:
        torch.autograd.backward([a, b])
        total = a.item() + b.item()
    elif step % 3 == 1:
        torch.autograd.backward(tensors=(a + b))
        total = (a + b).item()
    else:
        both = torch.stack([a, b])
        both.backward(gradient=torch.ones(2))
        total = both.sum().item()
    optimizer.step()
    optimizer.zero_grad()
    show.loss(total)
show.weights(model)
