"""Trains for long, each step of which holds 8 MiB of a function of its own; or, told `oom`, ends as
where a GPU's memory is used up, with what its allocator says then standing in for a GPU's."""

import sys
import time

import quick  # noqa: F401
import torch

torch.set_num_threads(1)
model = torch.nn.Linear(64, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)


def hold_much():
    return torch.empty(2 << 20).fill_(1.0)


def use_up():
    here = {"filename": __file__, "line": 19, "name": "hold_much"}
    torch.cuda.memory._snapshot = lambda device=None: {
        "segments": [{"blocks": [{"size": 8 << 30, "state": "active_allocated", "frames": [here]},
                                 {"size": 4 << 30, "state": "inactive", "frames": []}]}]}
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 6.00 GiB.")


for step in range(10**6):
    optimizer.zero_grad()
    held = hold_much()
    model(torch.randn(8, 64)).mean().backward()
    optimizer.step()
    if sys.argv[1:] == ["oom"] and step == 3:
        use_up()
    time.sleep(0.01)
