"""One process and several GPUs: torch.nn.DataParallel."""

from __future__ import annotations

from torch import nn

from gpu_engine.training.precision import Autocast
from gpu_engine.training.strategies.base import Strategy
from gpu_engine.training.task import Task


class DataParallel(Strategy):
    """Copies the model to all devices in each forward pass and divides the batch among them.

    The parameters are on the first device, where gradients are added up.
    """

    def wrap(self, task: Task) -> nn.Module:
        """The result of `Task.data_parallel`."""
        # DataParallel runs each replica in its own thread. It passes on whether autocast is on, but
        # not its type (torch/nn/parallel/parallel_apply.py), so bf16 would become fp16. So the
        # replica enters autocast itself. A task with its own `data_parallel` gets the bare model.
        own = type(task).data_parallel is not Task.data_parallel
        inner = self.raw if own or self.precision.dtype is None else Autocast(self.raw,
                                                                              self.precision)
        return task.data_parallel(inner, self.devices)

    def for_evaluation(self) -> nn.Module:
        """The wrapped model, which divides a batch among the devices."""
        return self.model
