"""What training asks of a mode. A strategy answers for one rank."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gpu_engine.training.precision import Precision
from gpu_engine.training.task import Task
from gpu_engine.worker.rank.job import Job


class Strategy(ABC):
    """One model, placed on this rank's devices and wrapped as its mode trains it.

    Where the work is divided among ranks, each rank has a strategy of its own, and the methods say
    which of them all ranks call together. What a subclass leaves as it is here holds for a model
    that lies whole on this rank.
    """

    raw: nn.Module
    """The task's own model. The optimizer has its parameters, and checkpoints its names, without
    a "module." before them."""
    model: nn.Module
    """What `Task.loss` is given in training: `raw`, or what it is wrapped in."""

    def __init__(self, task: Task, raw: nn.Module, job: Job, precision: Precision) -> None:
        """Place and wrap `raw`, on all ranks together. No optimizer has seen it yet."""
        self.job, self.precision = job, precision
        self.devices = [torch.device(d) for d in job.devices]
        self.raw = raw
        self.place()
        self.model = self.wrap(task)

    def place(self) -> None:
        """Move `raw` to where its parameters belong: to this rank's first device."""
        self.raw.to(self.devices[0])

    @abstractmethod
    def wrap(self, task: Task) -> nn.Module:
        """What `Task.loss` is given in training.

        After the backward pass of a step, each parameter of `raw` has the gradient of the mean
        over all replicas, the same on every rank.
        """

    def local_gradients(self) -> AbstractContextManager[object]:
        """Around a forward and backward pass whose gradients add up on this rank alone; the pass
        after it takes them to the others. Used for all passes of a step but the last."""
        return nullcontext()

    def gradient_norm(self, parameters: Iterable[nn.Parameter]) -> Tensor:
        """The Euclidean norm of all gradients together, shape (). All ranks call it together."""
        return nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])

    def clip(self, parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
        """Scale the gradients down to a norm of `limit`, where it is larger; the norm before,
        shape (). All ranks call it together."""
        return nn.utils.clip_grad_norm_(parameters, limit)

    def full_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """"model" and "optimizer" as a checkpoint holds them: whole, by the names of `raw`, so
        that any mode can go on from it. All ranks call it together; rank 0's is written."""
        return {"model": self.raw.state_dict(), "optimizer": optimizer.state_dict()}

    def load_full_state(self, state: Mapping[str, Any], optimizer: Optimizer) -> None:
        """Take what `full_state` gave, in whichever mode; every rank has the whole of it.

        Raises RuntimeError, ValueError or KeyError where it does not fit the model.
        """
        self.raw.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    def for_evaluation(self) -> nn.Module:
        """What `Task.metrics` is given. All ranks call it together; the model that they get must
        compute without the others, as the ranks may have different numbers of batches."""
        return self.raw
