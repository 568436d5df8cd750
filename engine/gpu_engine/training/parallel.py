"""One model over one device, several, or several processes: one function a mode."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gpu_engine.plan import modes
from gpu_engine.rank.job import Job
from gpu_engine.training.precision import Autocast, Precision
from gpu_engine.training.task import Task


@dataclass
class Spread:
    """A model and how it is spread."""

    raw: nn.Module
    """The model itself: what is saved and loaded, its names without a `module.` before them."""
    model: nn.Module
    """What `Task.loss` is given in training."""
    for_eval: nn.Module
    """What `Task.metrics` is given: no collective inside, so ranks may differ in batches."""
    local: Callable[[], AbstractContextManager]
    """Around a forward and backward pass whose gradients stay on this rank for now."""


def spread(task: Task, raw: nn.Module, job: Job, precision: Precision) -> Spread:
    """Place `raw` on the job's devices and spread it as its mode says."""
    devices = [torch.device(d) for d in job.devices]
    raw.to(devices[0])
    if modes.get(job.mode).replica_a_device and not job.distributed:
        return _data_parallel(task, raw, devices, precision)
    if job.distributed:
        return _distributed(raw, devices[0], job)
    return Spread(raw, raw, raw, nullcontext)


def _data_parallel(task: Task, raw: nn.Module, devices: list[torch.device],
                   precision: Precision) -> Spread:
    # DataParallel runs each replica in a thread of its own and takes autocast along but not its
    # type (torch/nn/parallel/parallel_apply.py): bf16 would come out as fp16. So the replica
    # enters autocast itself. A task that spreads parts of its model sees the model itself.
    own = type(task).data_parallel is not Task.data_parallel
    inner = raw if own or precision.dtype is None else Autocast(raw, precision)
    model = task.data_parallel(inner, devices)
    return Spread(raw, model, model, nullcontext)


def _distributed(raw: nn.Module, device: torch.device, job: Job) -> Spread:
    options = {}
    if job.get("parallel.bucket_cap_mb") is not None:
        options["bucket_cap_mb"] = job.get("parallel.bucket_cap_mb")
    static = bool(job.get("parallel.static_graph"))
    model = DistributedDataParallel(
        raw, device_ids=[device.index] if device.type == "cuda" else None,
        static_graph=static,
        find_unused_parameters=bool(job.get("parallel.find_unused")),
        gradient_as_bucket_view=True,  # gradients are not kept twice
        **options)
    return Spread(raw, model, raw, _first_reduced(model.no_sync) if static else model.no_sync)


def _first_reduced(no_sync: Callable[[], AbstractContextManager]
                   ) -> Callable[[], AbstractContextManager]:
    """`no_sync`, but not for the first pass of the process: in that one a static graph is learnt
    from the reduction, and without it the next ends in an internal assert of PyTorch.

    A gradient that is averaged twice is the same as one that is averaged once.
    """
    ways = iter([nullcontext])
    return lambda: next(ways, no_sync)()


def take_buffers_of_first(raw: nn.Module) -> None:
    """Give the model of every rank rank 0's buffers, which are those that a checkpoint holds.

    DDP does so at the beginning of each forward pass in training; the pass itself then moves
    them on by each rank's own batch, as BatchNorm does with its averages. All ranks call it.
    """
    left_out = getattr(raw, "_ddp_params_and_buffers_to_ignore", ())  # as DDP reads it
    for name, buffer in raw.named_buffers():
        if name in left_out or buffer.numel() == 0:
            continue
        whole = buffer.detach().contiguous()
        dist.broadcast(whole, 0)
        if whole.data_ptr() != buffer.data_ptr():
            buffer.detach().copy_(whole)
