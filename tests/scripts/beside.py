"""Steps whose gradients are of less than all calls of backward() before them, or of none: some
batches are left out, and the gradients of some steps come from torch.autograd.grad. In the last
ones the gradients of two tasks are collected, and both count."""

import quick  # noqa: F401
import show
import torch

model = show.toy()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step = 0
for i in range(24):
    scale = float("nan") if i == 5 else 100.0 if i in (9, 10) else 1.0
    loss = (model(torch.randn(16, 8)) - scale).square().mean()
    if i in (14, 15):
        grads = torch.autograd.grad(loss, list(model.parameters()))
        for p, grad in zip(model.parameters(), grads, strict=True):
            p.grad = grad
    else:
        optimizer.zero_grad(set_to_none=i != 11)
        loss.backward()
        # A guard, as in many loops: such a batch is left out.
        if not torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0) < 100.0:
            continue
        show.loss(loss.detach(), f"step {step + 1}")
    optimizer.step()
    step += 1
for _ in range(3):
    total, collected = 0.0, [torch.zeros_like(p) for p in model.parameters()]
    for aim in (1.0, -1.0):
        optimizer.zero_grad()
        loss = (model(torch.randn(16, 8)) - aim).square().mean()
        loss.backward()
        total += loss.item()
        for grad, p in zip(collected, model.parameters(), strict=True):
            grad += p.grad
    for grad, p in zip(collected, model.parameters(), strict=True):
        p.grad = grad
    optimizer.step()
    step += 1
    show.loss(total, f"step {step}")
show.weights(model)
