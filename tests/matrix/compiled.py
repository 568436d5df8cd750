# A script of somebody's own whose step, its optimizer's included, is inside torch.compile. It
# writes the losses that it has seen to a file, for comparison with what was recorded.
import json
import sys
from pathlib import Path

import torch
from torch import nn

import gpu_engine

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


@torch.compile(backend="aot_eager")
def step(x):
    loss = (model(x) - 1).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


losses = [step(torch.randn(16, 8)).item() for _ in range(6)]
gpu_engine.log(accuracy=0.5)
Path(sys.argv[1], "losses-0.json").write_text(json.dumps(losses))
