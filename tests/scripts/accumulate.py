"""Several backward passes a step, a schedule, and clipped gradients."""
# ruff: noqa: T201

import quick  # noqa: F401
import show
import torch

model = show.toy()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.5)
for _ in range(8):
    total = 0.0
    for _ in range(4):
        loss = (model(torch.randn(16, 8)) - 1).square().mean() / 4
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    show.loss(total)
    schedule.step()
print("lr", optimizer.param_groups[0]["lr"])
show.weights(model)
