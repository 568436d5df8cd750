"""One process for each device, on one machine or several: DistributedDataParallel (DDP)."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gpu_engine.common.errors import UserError
from gpu_engine.training import torch_private
from gpu_engine.training.strategies.base import Strategy
from gpu_engine.training.task import Task


class Distributed(Strategy):
    """Each rank has the whole model. Gradients are averaged during the backward pass."""

    _ddp: DistributedDataParallel
    _first_pass = True
    _passed = False
    """Whether DDP was called since `check_pass`, to average gradients."""
    _frozen: list[tuple[str, nn.Parameter]]
    """The parameters that required no gradient when DDP was made."""

    def wrap(self, task: Task) -> nn.Module:
        """The model in DDP, with the options from [parallel] in the spec."""
        job, device = self.job, self.devices[0]
        options = {}
        if job.spec.parallel.bucket_cap_mb is not None:
            options["bucket_cap_mb"] = job.spec.parallel.bucket_cap_mb
        self._static = job.spec.parallel.static_graph
        self._frozen = [(n, p) for n, p in self.raw.named_parameters() if not p.requires_grad]
        self._ddp = DistributedDataParallel(
            self.raw, device_ids=[device.index] if device.type == "cuda" else None,
            static_graph=self._static,
            find_unused_parameters=job.spec.parallel.find_unused,
            gradient_as_bucket_view=True,  # does not keep gradients twice
            **options)
        if job.who.world_size > 1:
            self._ddp.register_forward_pre_hook(self._note_pass)
        return self._ddp

    def _note_pass(self, module: nn.Module, args: object) -> None:
        if torch.is_grad_enabled() and self._ddp.require_backward_grad_sync:
            self._passed = True

    def local_gradients(self) -> AbstractContextManager[object]:
        """DDP's `no_sync`."""
        # With a static graph, DDP learns the graph from the reduction in the very first pass.
        # Without that, the next pass would fail with an internal assert of PyTorch. The gradients
        # of that pass are then averaged twice, which is the same as once.
        if self._static and self._first_pass:
            self._first_pass = False
            return nullcontext()
        return self._ddp.no_sync()

    def averaged_in_backward(self) -> Iterable[nn.Parameter]:
        """All that DDP averages."""
        return self.raw.parameters() if self.job.who.world_size > 1 else ()

    def check(self) -> None:
        """DDP averages only the gradients that were required when it was made."""
        thawed = [name for name, parameter in self._frozen if parameter.requires_grad]
        if thawed and self.job.who.world_size > 1:
            raise UserError(
                f"{thawed[0]}{f' and {len(thawed) - 1} more' if thawed[1:] else ''} required no "
                "gradient when training began, and now do. DistributedDataParallel would not "
                "average their gradients, and the ranks' weights would drift apart. Let them "
                "require gradients from the start, with a learning rate of 0 until they are to "
                "train")

    def check_pass(self) -> None:
        """DDP averages only the gradients of passes through it."""
        if not self._passed and self.job.who.world_size > 1:
            raise UserError(
                "Task.loss did not call the model that it is given, but one inside it "
                "(model.module, or one that the task has kept): DistributedDataParallel averages "
                "gradients over the ranks only if it is called itself, and the ranks' weights "
                "would drift apart. Call model(...), and give it what else it needs as arguments")
        self._passed = False

    def for_evaluation(self) -> nn.Module:
        """The bare model, with rank 0's buffers on every rank, as a checkpoint holds them.

        In training, DDP broadcasts them before each forward pass. The pass then changes them by
        each rank's own batch, as BatchNorm does with its averages.
        """
        left_out = torch_private.left_out_by_ddp(self.raw)
        for name, buffer in self.raw.named_buffers():
            if name in left_out or buffer.numel() == 0:
                continue
            whole = buffer.detach().contiguous()
            dist.broadcast(whole, 0)
            if whole.data_ptr() != buffer.data_ptr():
                buffer.detach().copy_(whole)
        return self.raw
