"""How a model is put on devices, as far as one process without a GPU shows it."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

from gpu_engine import Task
from gpu_engine.training.parallel import spread
from gpu_engine.training.precision import Precision


class Spreads(Task):
    """Writes down what it was asked to spread."""

    def __init__(self) -> None:
        self.asked: list[nn.Module] = []

    def data_parallel(self, model, devices):
        self.asked.append(model)
        return super().data_parallel(model, devices)


JOB = SimpleNamespace(devices=("cpu",), mode="dp", distributed=False)


def test_data_parallel_goes_through_the_task_and_its_replicas_enter_autocast() -> None:
    """DataParallel's threads don't take autocast's type along: the replica enters it itself."""
    raw, batch = nn.Linear(4, 4), torch.randn(2, 4)
    made = spread(Task(), raw, JOB, Precision("bf16", "cpu"))
    assert isinstance(made.model, nn.DataParallel)
    assert made.model(batch).dtype == torch.bfloat16
    assert made.raw is raw
    assert isinstance(spread(Task(), raw, JOB, Precision("off", "cpu")).model, nn.DataParallel)
    # A task that spreads parts of its model is given the model itself.
    task = Spreads()
    spread(task, raw, JOB, Precision("bf16", "cpu"))
    assert task.asked == [raw]
    alone = SimpleNamespace(devices=("cpu",), mode="single", distributed=False)
    assert spread(Task(), raw, alone, Precision("off", "cpu")).model is raw
