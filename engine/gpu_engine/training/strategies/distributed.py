"""One process a device: torch.nn.parallel.DistributedDataParallel, on one machine or several."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gpu_engine.training.strategies.base import Strategy
from gpu_engine.training.task import Task


class Distributed(Strategy):
    """Each rank has a whole model, and gradients are averaged while a backward pass computes."""

    _ddp: DistributedDataParallel
    _first_pass = True

    def wrap(self, task: Task) -> nn.Module:
        """The model in DDP, with the options that [parallel] has for it."""
        job, device = self.job, self.devices[0]
        options = {}
        if job.spec.parallel.bucket_cap_mb is not None:
            options["bucket_cap_mb"] = job.spec.parallel.bucket_cap_mb
        self._static = job.spec.parallel.static_graph
        self._ddp = DistributedDataParallel(
            self.raw, device_ids=[device.index] if device.type == "cuda" else None,
            static_graph=self._static,
            find_unused_parameters=job.spec.parallel.find_unused,
            gradient_as_bucket_view=True,  # gradients are not kept twice
            **options)
        return self._ddp

    def local_gradients(self) -> AbstractContextManager[object]:
        """DDP's `no_sync`."""
        # The first pass of the process is reduced nevertheless where the graph is static: from
        # that reduction DDP learns the graph, and without it the next pass ends in an internal
        # assert of PyTorch. A gradient that is averaged twice is the same as averaged once.
        if self._static and self._first_pass:
            self._first_pass = False
            return nullcontext()
        return self._ddp.no_sync()

    def for_evaluation(self) -> nn.Module:
        """The model itself with rank 0's buffers, which are those that a checkpoint holds.

        DDP takes them at the beginning of each forward pass in training; the pass itself then
        changes them by each rank's own batch, as BatchNorm does with its averages.
        """
        left_out = getattr(self.raw, "_ddp_params_and_buffers_to_ignore", ())  # as DDP reads it
        for name, buffer in self.raw.named_buffers():
            if name in left_out or buffer.numel() == 0:
                continue
            whole = buffer.detach().contiguous()
            dist.broadcast(whole, 0)
            if whole.data_ptr() != buffer.data_ptr():
                buffer.detach().copy_(whole)
        return self.raw
