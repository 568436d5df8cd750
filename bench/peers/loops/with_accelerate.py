"""The loop with accelerate, which is given everything that it can prepare."""

import work
from accelerate import Accelerator
from torch.nn import functional
from torch.optim import SGD

accelerator = Accelerator(cpu=True)
work.settle(accelerator.num_processes)
model = work.model()
model, optimizer, batches = accelerator.prepare(
    model, SGD(model.parameters(), lr=work.RATE), work.loader(0, 1))
marks, goes_on = work.Marks(), True
while goes_on:
    for x, y in batches:
        goes_on = marks.step()
        if not goes_on:
            break
        loss = functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
accelerator.end_training()
