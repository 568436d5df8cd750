"""Trains, then compiles: with torch._dynamo as it is and with its stand-in, in forks of one process
that has imported torch. Prints a line of JSON for each, for test_dynamo_later.py."""

import gc
import json
import os
import sys
import traceback
from importlib import import_module
from importlib.util import find_spec

gc.disable()  # going through all of torch's objects takes as long as what is tried here
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

from gpu_engine.worker.rank import dynamo_later  # noqa: E402

LOADED = "torch._dynamo.config"  # the stand-in itself is torch._dynamo in sys.modules


@torch._disable_dynamo
def not_compiled(x: torch.Tensor) -> torch.Tensor:
    """Like functions of torch itself. Code that calls it is compiled in two parts."""
    return x + 1


def main(way: str) -> dict[str, object]:
    if way != "bare":
        dynamo_later.install()
    kept = import_module("torch._dynamo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def step(model: nn.Module = model) -> float:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).square().sum()
        loss.backward()
        optimizer.step()
        return loss.item()

    losses = [step(), step(), not_compiled(torch.zeros(())).item()]
    optimizer.load_state_dict(optimizer.state_dict())
    assert find_spec("torch._dynamo").origin == torch._dynamo.__file__  # as libraries ask for it
    before = LOADED in sys.modules
    match way:
        case "submodule":
            utils = import_module("torch._dynamo.utils")
            assert utils is torch._dynamo.utils is sys.modules["torch._dynamo.utils"]
            assert utils.counters is sys.modules["torch._dynamo.convert_frame"].counters
        case "attribute":
            assert kept.config is sys.modules[LOADED]
            return {"before": before}
    own = torch._dynamo.disable(step)  # a decorator of a task's own
    whole = torch.compile(lambda: own() + 1, backend="eager")
    parts = torch.compile(step, backend="eager")  # DDP and the optimizer are within
    around = torch.compile(lambda x: not_compiled(x * 2) * 3, backend="eager")
    losses += [whole(), parts(), parts(), around(torch.ones(())).item()]
    counters = sys.modules["torch._dynamo.utils"].counters
    assert kept.graph_break is sys.modules["torch._dynamo"].graph_break
    dist.destroy_process_group()
    return {"before": before, "losses": losses, "breaks": len(counters["graph_break"]),
            "stats": dict(counters["stats"])}


for way in ("bare", "submodule", "attribute"):
    sys.stdout.flush()
    if os.fork() == 0:
        try:
            sys.stdout.write(json.dumps({"way": way, **main(way)}) + "\n")
            sys.stdout.flush()
        except BaseException:  # noqa: BLE001 - the process must not go on as its parent
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.wait()[1] == 0, way
