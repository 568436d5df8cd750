"""What observing costs a person's own script: steps of about 1 ms with and without the hook.

Both in one process, in short blocks that take turns, so that what else the machine does meets
both alike; processor time of the whole process, our thread included, as others' load shifts that
least; the figure is the median over pairs of blocks.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def measure(pairs: int, block: int) -> dict[str, float]:
    """Run inside a process that has the hook. Figures in microseconds a step."""
    import torch
    from torch.optim import optimizer as optim

    torch.set_num_threads(1)
    torch.manual_seed(0)
    ours = sys.modules["_gpu_panel.worker.observe"]
    wrapped, original = torch.autograd.backward, torch.autograd.backward.__wrapped__
    hooks = [optim._global_optimizer_pre_hooks, optim._global_optimizer_post_hooks]
    kept = [dict(h) for h in hooks]
    width = 448
    model = torch.nn.Sequential(torch.nn.Linear(784, width), torch.nn.ReLU(),
                                torch.nn.Linear(width, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(64, 784), torch.randint(0, 10, (64,))

    def steps() -> float:
        """Microseconds a step."""
        began = time.process_time()
        for _ in range(block):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return (time.process_time() - began) / block * 1e6

    def switch(on: bool) -> None:
        torch.autograd.backward = wrapped if on else original
        for hook, those in zip(hooks, kept, strict=True):
            hook.clear()
            hook.update(those if on else {})
        rec = ours.observer.rec
        if on and not rec.started:
            rec.begin()
        elif not on:
            rec.pause()

    steps()
    bare, observed = [], []
    for i in range(pairs):
        for on in ((False, True) if i % 2 else (True, False)):
            switch(on)
            (observed if on else bare).append(steps())
    ratios = [o / b for o, b in zip(observed, bare, strict=True)]
    return {"bare": statistics.median(bare), "observed": statistics.median(observed),
            "ratio": statistics.median(ratios),
            "low": statistics.quantiles(ratios, n=4)[0],
            "high": statistics.quantiles(ratios, n=4)[2], "pairs": pairs, "block": block}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--block", type=int, default=200)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv or [])
    if args.inside:
        print(json.dumps(measure(args.pairs, args.block)))  # noqa: T201
        return
    from gpu_engine.plan_processes import HOOK

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "ranks").mkdir()
        out = subprocess.run(
            [sys.executable, __file__, "--inside", "--pairs", str(args.pairs), "--block",
             str(args.block)], check=True, capture_output=True, text=True,
            env=os.environ | {"PYTHONPATH": HOOK, "GPU_PANEL_RUN": folder, "GPU_PANEL_RANK": "0",
                              "OMP_NUM_THREADS": "1"})
    found = json.loads(out.stdout)
    print("observing a script: {bare:.0f} µs a step without, {observed:.0f} µs with; "  # noqa: T201
          "median ratio {ratio:.4f} (quartiles {low:.4f} to {high:.4f}) over {pairs} pairs of "
          "{block} steps".format(**found))


if __name__ == "__main__":
    main(sys.argv[1:])
