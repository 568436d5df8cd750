"""The job behind `gpu-engine check`: do the ranks reach each other, do their sums come out
right, and how fast do bytes travel? In seconds.

The first thing every multi-GPU tutorial does by hand.
"""

from __future__ import annotations

import json
import socket
import sys
import time

import torch
import torch.distributed as dist

from gpu_engine.common.errors import UserError
from gpu_engine.worker.rank.job import Job
from gpu_engine.worker.rank.process_group import Group
from gpu_engine.worker.rank.recorder import Recorder

WAIT = 30.0
"""Seconds to wait for ranks that do not come."""
_SIZES = (1 << 10, 1 << 20, 16 << 20)
_SECONDS_A_SIZE = 0.5


def check(job: Job, group: Group, rec: Recorder) -> None:
    """Try the rank's devices, and reductions over all ranks; one `metric` event and one line of
    JSON a size. All ranks call it together.

    bytes_per_s is what nccl-tests calls bus bandwidth, size / time × 2(n-1)/n, which is to be
    compared with the link's speed whatever the number n of ranks
    (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md). Raises UserError for a wrong sum.
    """
    who = job.who
    for device, label in zip(job.devices, job.labels, strict=True):
        _try_device(torch.device(device), label)
    line = {"check": "device", "rank": who.rank, "host": socket.gethostname(),
            "device": list(job.labels), "backend": job.backend}
    _say(line)
    if not job.distributed:
        return
    device = torch.device(job.devices[0])
    _sum(device, who.rank, who.world_size)
    for size in _SIZES:
        seconds = _time(device, size, group)
        n = who.world_size
        speed = size / seconds * 2 * (n - 1) / n
        figures = {"bytes": size, "seconds": round(seconds, 9), "bytes_per_s": round(speed)}
        rec.write("metric", step=0, values=figures)
        if who.rank == 0:
            _say({"check": "reduce", "ranks": n, **figures})


def _try_device(device: torch.device, label: str) -> None:
    numbers = torch.arange(1000, dtype=torch.float32, device=device)
    if int(numbers.sum().item()) != 499500:
        raise UserError(f"{label}: the sum of 0 to 999 came out as {numbers.sum().item()}")


def _sum(device: torch.device, rank: int, ranks: int) -> None:
    cell = torch.full((1000,), float(rank + 1), device=device)
    dist.all_reduce(cell)
    expected = ranks * (ranks + 1) // 2
    wrong = cell[cell != expected]
    if wrong.numel():
        raise UserError(f"rank {rank}: the sum of 1 to {ranks} over all ranks came out as "
                        f"{wrong[0].item():g}, not {expected}")


def _time(device: torch.device, size: int, group: Group) -> float:
    """Seconds that one reduction of `size` bytes takes, over as many as fit into half a second."""
    cell = torch.zeros(size // 4, device=device)
    dist.all_reduce(cell)  # the first one sets up connections
    _wait(device)
    began = time.perf_counter()
    dist.all_reduce(cell)
    _wait(device)
    once = group.all_reduce_max([time.perf_counter() - began])[0]  # all ranks must repeat as often
    times = max(1, min(int(_SECONDS_A_SIZE / max(once, 1e-6)), 200))
    began = time.perf_counter()
    for _ in range(times):
        dist.all_reduce(cell)
    _wait(device)
    return group.all_reduce_max([(time.perf_counter() - began) / times])[0]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _say(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
