"""What observing costs a person's own script: steps of about 1 and 10 ms with and without the hook.

Both take turns in one process, four steps each, so that other load on the machine affects both
alike. Each step is timed on the wall; the first one after a change is left out, because what it
needs has left the processor's caches. Told are the ratios of the medians of 400 steps each, and
what our own code takes by a clock around it: its thread, too, whose work is not in the ratio, as it
goes on beside both.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BLOCK, TURNS = 4, 100
"""Steps at a time, and how often both ways take their turn in a round."""
LOOPS = {"plain": 1.0, "plain, 10 ms": 0.25, "accumulation over 4": 0.5, "GAN": 0.5,
         "DDP of two ranks": 0.5}
"""The cases that are measured, and their share of the rounds."""


def _net(width: int) -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, 10))


def loop(name: str) -> Callable[[], None]:
    """A function that does one optimizer step in about 1 ms, or as its name says; for the GAN, one
    step of each optimizer."""
    import torch
    from torch.nn import functional

    torch.manual_seed(0)
    y = torch.randint(0, 10, (64,))
    if name == "GAN":
        x = torch.randn(32, 784)
        nets = [_net(192), _net(192)]
        both = [torch.optim.SGD(net.parameters(), lr=0.01) for net in nets]

        def step() -> None:
            for net, optimizer in zip(nets, both, strict=True):
                optimizer.zero_grad()
                functional.cross_entropy(net(x), y[:32]).backward()
                optimizer.step()
        return step
    parts = 4 if name.startswith("accumulation") else 1
    x, y = torch.randn(64 // parts, 784), y[:64 // parts]
    net = _net(4096 if name.endswith("10 ms") else 448)
    if name.startswith("DDP"):
        torch.distributed.init_process_group("gloo")
        net = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(parts):
            functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return step


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Measure, inside a process that has the hook. Figures are in microseconds per step."""
    import torch

    optim: Any = importlib.import_module("torch.optim.optimizer")

    torch.set_num_threads(1)
    wrapped: Any = torch.autograd.backward
    original = wrapped.__wrapped__
    hooks = [optim._global_optimizer_pre_hooks, optim._global_optimizer_post_hooks]
    kept = [dict(h) for h in hooks]
    step, clock = loop(name), time.perf_counter

    def switch(on: bool) -> None:
        torch.autograd.backward = wrapped if on else original
        for hook, those in zip(hooks, kept, strict=True):
            hook.clear()
            hook.update(those if on else {})

    def median_of_each() -> dict[bool, float]:
        """Of the steps without and with the hook."""
        times: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(TURNS):
            for on in (turn % 2 == 0, turn % 2 == 1):
                switch(on)
                step()
                for _ in range(BLOCK):
                    began = clock()
                    step()
                    times[on].append(clock() - began)
        return {on: statistics.median(those) * 1e6 for on, those in times.items()}

    for _ in range(TURNS):
        step()
    found = [median_of_each() for _ in range(rounds)]
    switch(True)
    step()
    return {"loop": name, "bare": statistics.median(each[False] for each in found),
            "rounds": rounds,
            "ratios": statistics.quantiles([each[True] / each[False] for each in found], n=4),
            "parts": _parts(step, 10 * TURNS)}


def _parts(step: Callable[[], None], count: int) -> dict[str, float]:
    """Microseconds per step in our own code: around `backward`, in both hooks, in our thread. Then
    with functions that do nothing in the same places: what the clock takes, and calls of code that
    has left the caches."""
    import torch

    optim: Any = importlib.import_module("torch.optim.optimizer")

    clock, on = time.thread_time_ns, True
    spent = {way: {"backward": 0, "hooks": 0, "thread": 0} for way in (True, False)}

    def timed(part: str, function: Any, nothing: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> None:
            began = clock()
            (function if on else nothing)(*args, **kwargs)
            spent[on][part] += clock() - began
        return run

    wrapped: Any = torch.autograd.backward
    names = wrapped.__code__.co_freevars
    cell: Any = dict(zip(names, wrapped.__closure__, strict=True))["function"]
    original = cell.cell_contents

    def inner(*args: Any, **kwargs: Any) -> None:
        began = clock()
        original(*args, **kwargs)
        spent[on]["backward"] -= clock() - began

    writer = sys.modules["_gpu_panel.observe.install"].observer.rec
    guard = writer.guard

    def timed_guard(work: Callable[[], None]) -> None:
        began = clock()
        guard(work)
        spent[on]["thread"] += clock() - began

    cell.cell_contents, writer.guard = inner, timed_guard
    torch.autograd.backward = timed("backward", wrapped, lambda *args, **kw: inner(*args, **kw))
    for hooks in (optim._global_optimizer_pre_hooks, optim._global_optimizer_post_hooks):
        for key, hook in list(hooks.items()):
            hooks[key] = timed("hooks", hook, lambda *args: None)
    for _ in range(count):
        step()
    on = False
    for _ in range(count):
        step()
    return {"nothing": (spent[False]["backward"] + spent[False]["hooks"]) / count / 1000,
            **{part: max(ns, 0) / count / 1000 for part, ns in spent[True].items()}}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=int(os.environ.get("BENCH_RUNS", "24")),
                        help=f"of {2 * TURNS * BLOCK} steps each")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    args = parser.parse_args(argv or [])
    if args.inside:
        print(json.dumps(measure(args.inside, args.rounds)))  # noqa: T201
        return
    for name, share in LOOPS.items():
        found = _in_a_process(name, max(round(args.rounds * share), 4))
        low, median, high = found["ratios"]
        parts = found["parts"]
        own = parts["backward"] + parts["hooks"] + parts["thread"]
        print(f"observing a script, {name}: {found['bare']:.0f} µs a step without; median "  # noqa: T201
              f"ratio {median:.4f} (quartiles {low:.4f} to {high:.4f}) over {found['rounds']} "
              f"rounds of 2 × {TURNS * BLOCK} steps; in our own code {own:.0f} µs, of which "
              f"{parts['backward']:.1f} around backward(), {parts['hooks']:.1f} in hooks, "
              f"{parts['thread']:.1f} in our thread; functions that do nothing at the same places: "
              f"{parts['nothing']:.1f}", flush=True)


def _in_a_process(name: str, rounds: int) -> dict[str, Any]:
    """What rank 0 has measured; another one does the same at the same time, if there is one."""
    from gpu_engine.common.ports import free_port
    from gpu_engine.plan.own_command import HOOK

    ranks, port = 2 if name.startswith("DDP") else 1, str(free_port())
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "ranks").mkdir()
        first, *others = [subprocess.Popen(
            [sys.executable, "-m", "bench.observe", "--inside", name, "--rounds", str(rounds)],
            stdout=subprocess.PIPE, text=True, cwd=ROOT,
            env=os.environ | {"PYTHONPATH": f"{HOOK}:{ROOT}", "GPU_PANEL_RUN": folder,
                              "GPU_PANEL_RANK": str(rank), "RANK": str(rank),
                              "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
                              "MASTER_PORT": port, "OMP_NUM_THREADS": "1"})
            for rank in range(ranks)]
        out, *_ = [process.communicate()[0] for process in (first, *others)]
        if any(process.returncode for process in (first, *others)):
            sys.exit(f"{name}: a rank failed")
    return json.loads(out)


if __name__ == "__main__":
    main(sys.argv[1:])
