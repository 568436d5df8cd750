"""How fast a device multiplies matrices: in `gpu-engine check`, and every so many steps of a run,
to find one that has become slow (`run.sniff`)."""

from __future__ import annotations

import time
from math import inf
from typing import Any

import torch

from ...events import schema
from .memory import is_gpu_out_of_memory

_SECONDS = 0.05
_SIZE = 4096
"""On a GPU, the rows of a matrix of 32 MiB: two of them have to fit beside the training."""


class Sniffer:
    """Says how fast this rank's device is, every so many steps. All ranks do so after the same
    steps, so that none waits longer for the others than it does anyway."""

    def __init__(self, every: int) -> None:
        self._every = every
        self.due: float = every
        """From how many steps on `measure` is to be called."""

    def measure(self, step: int, device: torch.device) -> schema.Event | None:
        """What there is to say after `step` steps; waits for the device. None: not now."""
        self.due = step - step % self._every + self._every
        try:
            if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                return None
            with torch.autocast(device.type, enabled=False):
                found = multiply(device, _SECONDS, _SIZE)
        except Exception as err:  # noqa: BLE001  never the training's problem
            if is_gpu_out_of_memory(err):
                return None
            self.due = inf
            return schema.Warning(f"devices are not measured (run.sniff): {err}")
        return schema.Sniff(step, found["model"], found["flops_per_s"])


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
