"""The loop by hand, whose steps TraceML is told of: else it says nothing of a plain loop."""

import torch
import traceml_ai as traceml
import work
from torch.nn import functional

traceml.init()
work.settle(1)
model = work.model()
optimizer = torch.optim.SGD(model.parameters(), lr=work.RATE)
batches, marks = work.loader(0, 1), work.Marks()
goes_on = True
while goes_on:
    for x, y in batches:
        goes_on = marks.step()
        if not goes_on:
            break
        with traceml.trace_step(model):
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
