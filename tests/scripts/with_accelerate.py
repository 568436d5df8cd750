"""Hugging Face accelerate, with its accumulation."""

import frozen
import quick  # noqa: F401
import show
import torch

with frozen.imports():
    from accelerate import Accelerator

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = show.toy()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = torch.utils.data.DataLoader(torch.randn(128, 8), batch_size=8)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
total = 0.0
for x in data:
    with accelerator.accumulate(model):
        loss = (model(x) - 1).square().mean()
        accelerator.backward(loss)
        total += (loss / 2).item()
        optimizer.step()
        optimizer.zero_grad()
        if accelerator.sync_gradients:
            show.loss(total, f"rank {accelerator.process_index} loss")
            total = 0.0
show.weights(model)
