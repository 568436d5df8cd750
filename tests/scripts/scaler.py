"""A GradScaler whose scale is once too large, and accumulation on the scaled loss. With
"clips" gradients are clipped before they are unscaled, with "unscales" after that."""
# ruff: noqa: T201

import sys

import quick  # noqa: F401
import show
import torch

model = show.toy()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
for step in range(12):
    total = 0.0
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            loss = (model(torch.randn(16, 8)) - 1).square().float().mean()
        if step % 3 == 2:
            (scaler.scale(loss) / 2).backward()  # scaled, then changed
        else:
            scaler.scale(loss / 2).backward()
        total += (loss / 2).item()
    if step == 5:
        next(model.parameters()).grad[0, 0] = float("inf")
    if "unscales" in sys.argv:
        scaler.unscale_(optimizer)
    if "clips" in sys.argv:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    before = [p.clone() for p in model.parameters()]
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    if all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)):
        print("left out", flush=True)
    else:
        show.loss(total)
show.weights(model)
