"""What the training loop needs from a mode: placing and wrapping the model, gradients, state."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gpu_engine.spec import modes
from gpu_engine.training.precision import Precision
from gpu_engine.training.task import Task
from gpu_engine.worker.rank.job import Job

COMPILED = "_orig_mod."
"""What a module returned by torch.compile puts before the names of its weights. A checkpoint has
the names without it, so that it also fits the model that is not compiled."""


def strategy_of(mode: str) -> type[Strategy]:
    """The class that the record of `mode` in `spec/modes.py` names.

    Raises SpecError if there is no such mode, and TypeError if the named class is no strategy.
    """
    where = modes.get(mode).strategy
    module, _, name = where.partition(":")
    found = getattr(importlib.import_module(module), name, None)
    if not (isinstance(found, type) and issubclass(found, Strategy)):
        raise TypeError(f"mode {mode!r} names {where} as its strategy, which is no subclass of "
                        "gpu_engine.training.strategies.base.Strategy")
    return found


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

    def gradient_norm(self, parameters: Iterable[nn.Parameter]) -> Tensor:
        """The Euclidean norm of all gradients together, shape (). All ranks call it together."""
        return total_norm([p.grad for p in parameters if p.grad is not None])

    def clip(self, parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
        """Scale the gradients down to a norm of `limit` if it is larger. Returns the norm before,
        shape (). All ranks call it together."""
        return nn.utils.clip_grad_norm_(parameters, limit)

    def full_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The entries "model" and "optimizer" of a checkpoint, whole and under the names of `raw`,
        so that any mode can go on from it. All ranks call it together; rank 0's is written."""
        weights = self.raw.state_dict()
        if any(COMPILED in name for name in weights):
            weights = {name.replace(COMPILED, ""): value for name, value in weights.items()}
        return {"model": weights, "optimizer": optimizer.state_dict()}

    def load_full_state(self, state: Mapping[str, Any], optimizer: Optimizer) -> None:
        """Load what `full_state` returned in any mode. Every rank gets the whole state.

        Raises RuntimeError, ValueError or KeyError if it does not fit the model.
        """
        weights: Mapping[str, Any] = state["model"]
        own = list(self.raw.state_dict())
        if any(COMPILED in name for name in (*own, *weights)):
            names: dict[str, str] = {name.replace(COMPILED, ""): name for name in own}
            weights = {names.get(name.replace(COMPILED, ""), name): value
                       for name, value in weights.items()}
        self.raw.load_state_dict(weights)
        optimizer.load_state_dict(state["optimizer"])

    def for_evaluation(self) -> nn.Module:
        """The model that `Task.metrics` gets. All ranks call this together. The model itself must
        not communicate, as ranks may have different numbers of batches."""
        return self.raw


def total_norm(tensors: list[Tensor]) -> Tensor:
    """The Euclidean norm of all tensors together, shape (), on the device of the first."""
    if hasattr(nn.utils, "get_total_norm"):  # since torch 2.6
        return nn.utils.get_total_norm(tensors)
    if not tensors:
        return torch.tensor(0.0)
    norms = [torch.linalg.vector_norm(t).to(tensors[0].device) for t in tensors]
    return torch.linalg.vector_norm(torch.stack(norms))
