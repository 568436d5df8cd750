"""One process and several GPUs: torch.nn.DataParallel."""

from __future__ import annotations

from torch import nn

from gpu_engine.training.precision import Autocast
from gpu_engine.training.strategies.base import Strategy
from gpu_engine.training.task import Task


class DataParallel(Strategy):
    """The model is copied to all devices in each forward pass, and the batch divided among them.

    The parameters are on the first device, and gradients are added up there.
    """

    def wrap(self, task: Task) -> nn.Module:
        """What `Task.data_parallel` makes of the model."""
        # DataParallel runs each replica in a thread of its own and takes autocast along but not
        # its type (torch/nn/parallel/parallel_apply.py): bf16 would come out as fp16. So the
        # replica enters autocast itself. A task that spreads parts of its model is given the model
        # itself.
        own = type(task).data_parallel is not Task.data_parallel
        inner = self.raw if own or self.precision.dtype is None else Autocast(self.raw,
                                                                              self.precision)
        return task.data_parallel(inner, self.devices)

    def for_evaluation(self) -> nn.Module:
        """The wrapped model, which divides a batch among the devices."""
        return self.model
