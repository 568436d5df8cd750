"""What the ranks do under `gpu-engine check`. Within seconds it shows whether they reach each
other, whether their sums are right, how fast they exchange data, and how fast each computes.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

from gpu_engine.common.errors import UserError
from gpu_engine.events import schema
from gpu_engine.worker.rank.group import Group
from gpu_engine.worker.rank.job import Job
from gpu_engine.worker.rank.recorder import Recorder

WAIT = 30.0
"""Seconds to wait for ranks that are missing."""
_SIZES = (1 << 10, 1 << 20, 16 << 20)
_SECONDS_A_SIZE = 0.2
_SIZE = 8192
"""Rows of the matrices that GPUs multiply."""
_PAIR_BYTES = {"cuda": 64 << 20}
_MOST_RANKS = 16
"""With more ranks, only neighbours are tried: the pairs would take minutes."""


def check(job: Job, group: Group, rec: Recorder) -> None:
    """Try this rank's devices, then all-reduces of several sizes over all ranks, then each pair of
    ranks. Each size gives one `metric` event and, on rank 0, one line of JSON; each pair gives a
    line on the first of the two. All ranks call it together.

    bytes_per_s is what nccl-tests calls bus bandwidth: size / time × 2(n-1)/n for n ranks. It can
    be compared with the speed of the link, however many ranks there are
    (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md). Raises UserError for a wrong sum.
    """
    who = job.who
    host = socket.gethostname()
    for device, label in zip(job.devices, job.labels):
        total = int(torch.arange(1000, dtype=torch.float32, device=device).sum().item())
        if total != 499500:
            raise UserError(f"{label}: the sum of 0 to 999 came out as {total}")
    line = {"check": "device", "rank": who.rank, "host": host,
            "device": list(job.labels), "backend": job.plan.backend}
    _print(line)
    if job.distributed:
        _sum(torch.device(job.devices[0]), who.rank, who.world_size)  # all have come
    for device, label in zip(job.devices, job.labels):
        _print({"check": "product", "rank": who.rank, "host": host, "device": label,
                **multiply(torch.device(device), _SECONDS_A_SIZE, _SIZE)})
    if not job.distributed:
        return
    device = torch.device(job.devices[0])
    for size in _SIZES:
        seconds = _time(device, size, group)
        n = who.world_size
        speed = size / seconds * 2 * (n - 1) / n
        figures = {"bytes": size, "seconds": round(seconds, 9), "bytes_per_s": round(speed)}
        rec.write(schema.Metric(0, figures))
        if who.rank == 0:
            _print({"check": "reduce", "ranks": n, **figures})
    hosts: list[str] = [""] * who.world_size
    dist.all_gather_object(hosts, host)
    for pair in _pairs(who.world_size):
        dist.barrier()  # one pair at a time, as they may share a link
        if who.rank in pair:
            figures = _exchange(device, pair[1 - pair.index(who.rank)])
            if who.rank == pair[0]:
                _print({"check": "pair", "ranks": pair, "hosts": [hosts[r] for r in pair],
                        "device_type": device.type, **figures})


def _pairs(ranks: int) -> list[list[int]]:
    """All pairs of ranks; of many ranks, each and the next."""
    if ranks > _MOST_RANKS:
        return [[r, r + 1] for r in range(ranks - 1)]
    return [[a, b] for a in range(ranks) for b in range(a + 1, ranks)]


def _exchange(device: torch.device, other: int) -> dict[str, object]:
    """Send a tensor to the other rank and receive one, at the same time: bytes, and bytes per
    second in each direction, the best of three."""
    size = _PAIR_BYTES.get(device.type, 4 << 20)
    out, into = (torch.zeros(size // 4, device=device) for _ in "ab")
    best = float("inf")
    for _ in range(4):  # the first sets up the connection
        wait(device)
        began = time.perf_counter()
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, out, other),
                                            dist.P2POp(dist.irecv, into, other)]):
            work.wait()
        wait(device)
        best = min(best, time.perf_counter() - began)
    return {"bytes": size, "bytes_per_s": round(size / best)}


def _sum(device: torch.device, rank: int, ranks: int) -> None:
    cell = torch.full((1000,), float(rank + 1), device=device)
    dist.all_reduce(cell)
    expected = ranks * (ranks + 1) // 2
    wrong = cell[cell != expected]
    if wrong.numel():
        raise UserError(f"rank {rank}: the sum of 1 to {ranks} over all ranks came out as "
                        f"{wrong[0].item():g}, not {expected}")


def _time(device: torch.device, size: int, group: Group) -> float:
    """The mean seconds of one all-reduce of `size` bytes, in about a fifth of a second."""
    cell = torch.zeros(size // 4, device=device)
    dist.all_reduce(cell)  # the first one also sets up connections: don't time it
    wait(device)
    began = time.perf_counter()
    dist.all_reduce(cell)
    wait(device)
    once = group.all_reduce_max([time.perf_counter() - began])[0]  # all ranks must repeat as often
    times = max(1, min(int(_SECONDS_A_SIZE / max(once, 1e-6)), 200))
    began = time.perf_counter()
    for _ in range(times):
        dist.all_reduce(cell)
    wait(device)
    return group.all_reduce_max([(time.perf_counter() - began) / times])[0]


def _print(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def multiply(device: torch.device, seconds: float, n: int) -> dict[str, Any]:
    """Multiply square matrices for about so many seconds, on a GPU with `n` rows: the model of the
    device, and floating point operations per second, 2 n³ for a product."""
    gpu = device.type == "cuda"
    n, dtype = (n, torch.float16) if gpu else (512, torch.float32)
    a = torch.ones((n, n), dtype=dtype, device=device)
    a @ a
    wait(device)
    began, times = time.perf_counter(), 0
    while (took := time.perf_counter() - began) < seconds:
        for _ in range(4):
            a @ a
        wait(device)
        times += 4
    model = torch.cuda.get_device_name(device) if gpu else device.type
    return {"model": model, "dtype": str(dtype).rpartition(".")[2], "n": n,
            "flops_per_s": round(2 * n ** 3 * times / took)}


def wait(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
