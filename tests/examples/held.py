"""A rank that prints what it holds of the divided model after a pass: numbers of its weights, its
gradients, and the whole; modules that are gathered by themselves; how often blocks computed."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import sharded

computed = []
compute = sharded.Block.compute
sharded.Block.compute = lambda *args: computed.append(1) or compute(*args)
dist.init_process_group("gloo")
model = sharded.sharded_model(sharded.options(), "cpu")
model(torch.zeros(2, 3, dtype=torch.int64)).sum().backward()
weights = list(model.parameters())
print(sum(p.to_local().numel() for p in weights),  # noqa: T201
      sum(p.grad.to_local().numel() for p in weights), sum(p.numel() for p in weights),
      sum(isinstance(part, FSDPModule) for part in model.modules()), len(computed), flush=True)
dist.destroy_process_group()
