"""How torch trains in each mode: placing and wrapping the model, gradients, state. Each
class is one way of training."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from gpu_engine.common.errors import UserError
from gpu_engine.spec import modes
from gpu_engine.training.precision import Autocast, Precision
from gpu_engine.training.task import Task
from gpu_engine.worker.rank import torch_private
from gpu_engine.worker.rank.job import Job

COMPILED = "_orig_mod."
"""What a module returned by torch.compile puts before the names of its weights. A checkpoint has
the names without it, so that it also fits the model that is not compiled."""


def strategy_of(mode: str) -> type[Strategy]:
    """The class that the record of `mode` in `spec/modes.py` names.

    Raises SpecError if there is no such mode.
    """
    module, _, name = modes.get(mode).strategy.partition(":")
    return getattr(importlib.import_module(module), name)


class Strategy:
    """A model, placed on this rank's devices and wrapped for its mode.

    Each rank has its own strategy; the methods say which of them all ranks call together. The
    methods here are those of mode "single", right for a model that lies whole on this rank; a
    subclass overrides the others.
    """

    raw: nn.Module
    """The task's own model. The optimizer has its parameters, and checkpoints use its names,
    without "module." in front."""
    model: nn.Module
    """What `Task.loss` gets in training: `raw`, or its wrapper."""

    def __init__(self, task: Task, raw: nn.Module, job: Job, precision: Precision) -> None:
        """Place and wrap `raw`. All ranks call it together, before the optimizer is made."""
        self.job, self.precision = job, precision
        self.devices = [torch.device(d) for d in job.devices]
        self.raw = raw
        self.place()
        self.model = self.wrap(task)

    def place(self) -> None:
        """Move `raw` to this rank's first device."""
        self.raw.to(self.devices[0])

    def wrap(self, task: Task) -> nn.Module:
        """The model that `Task.loss` gets in training.

        After the backward pass of a step, each parameter of `raw` has the gradient of the mean
        over all replicas, the same on every rank.
        """
        return self.raw

    def local_gradients(self) -> AbstractContextManager[object]:
        """A context for a forward and backward pass whose gradients stay on this rank and add up.
        It is used for all passes of a step but the last, which averages them over ranks."""
        return nullcontext()

    def check(self) -> None:
        """Raise UserError if the task has changed the model in a way that this mode trains wrongly.
        Called some times a second, and before the weights are saved or evaluated."""
        return

    def check_pass(self) -> None:
        """Raise UserError if the last pass of a step went around `model`, so that this mode could
        not combine its gradients. Called after that pass."""
        return

    def averaged_in_backward(self) -> Iterable[nn.Parameter]:
        """The parameters whose gradients the backward pass averages over ranks, so that it ends
        when the other ranks have theirs; none, if it does not wait for other ranks."""
        return ()

    def clip(self, parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
        """Scale the gradients down to a Euclidean norm of `limit` (inf: don't) of all together.
        Returns the norm before, shape (). All ranks call it together."""
        return nn.utils.clip_grad_norm_(parameters, limit)

    def full_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The entries "model" and "optimizer" of a checkpoint, whole and under the names of `raw`,
        so that any mode can go on from it. All ranks call it together; rank 0's is written."""
        weights = self.raw.state_dict()
        for name in [name for name in weights if COMPILED in name]:
            weights[name.replace(COMPILED, "")] = weights.pop(name)
        return {"model": weights, "optimizer": optimizer.state_dict()}

    def load_full_state(self, state: Mapping[str, Any], optimizer: Optimizer) -> None:
        """Load what `full_state` returned in any mode. Every rank gets the whole state.

        Raises RuntimeError, ValueError or KeyError if it does not fit the model.
        """
        weights = state["model"]
        for name in [name for name in self.raw.state_dict() if COMPILED in name]:
            if (plain := name.replace(COMPILED, "")) in weights:
                weights[name] = weights.pop(plain)
        self.raw.load_state_dict(weights)
        optimizer.load_state_dict(state["optimizer"])

    def for_evaluation(self) -> nn.Module:
        """The model that `Task.metrics` gets. All ranks call this together. The model itself must
        not communicate, as ranks may have different numbers of batches."""
        return self.raw

# ------------------------------------------------------------------------------------------------
# One process and several GPUs: torch.nn.DataParallel.


class DataParallel(Strategy):
    """Copies the model to all devices in each forward pass and divides the batch among them.

    The parameters are on the first device, where gradients are added up.
    """

    def wrap(self, task: Task) -> nn.Module:
        """The result of `Task.data_parallel`."""
        # A task with its own `data_parallel` gets the bare model.
        inner, dtype = self.raw, self.precision.dtype
        if dtype is not None and type(task).data_parallel is Task.data_parallel:
            inner = Autocast(inner, self.devices[0].type, dtype)
        return task.data_parallel(inner, self.devices)

    def for_evaluation(self) -> nn.Module:
        """The wrapped model, which divides a batch among the devices."""
        return self.model

# ------------------------------------------------------------------------------------------------
# One process for each device, on one machine or several: DistributedDataParallel (DDP).


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
