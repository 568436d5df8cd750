"""The strategies of all modes, as far as one process without a GPU can test them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from gpu_engine import Task
from gpu_engine.common.errors import SpecError
from gpu_engine.spec import modes
from gpu_engine.training.precision import Precision
from gpu_engine.training.strategies import Strategy, strategy_of

JOB = SimpleNamespace(devices=("cpu",))
OFF = Precision("off", "cpu")


class Divides(Task):
    """Notes which models were passed to `data_parallel`."""

    def __init__(self):
        self.given: list[nn.Module] = []

    def data_parallel(self, model, devices):
        self.given.append(model)
        return super().data_parallel(model, devices)


def test_data_parallel_goes_through_the_task_and_its_replicas_enter_autocast():
    """DataParallel does not pass autocast's type on to its threads, so the replica enters it."""
    raw, batch = nn.Linear(4, 4), torch.randn(2, 4)
    dp = strategy_of("dp")
    made = dp(Task(), raw, JOB, Precision("bf16", "cpu"))
    assert isinstance(made.model, nn.DataParallel)
    assert made.model(batch).dtype == torch.bfloat16
    assert made.raw is raw
    assert made.for_evaluation() is made.model
    assert isinstance(dp(Task(), raw, JOB, OFF).model, nn.DataParallel)
    # A task with its own `data_parallel` gets the bare model.
    task = Divides()
    dp(task, raw, JOB, Precision("bf16", "cpu"))
    assert task.given == [raw]
    assert strategy_of("single")(Task(), raw, JOB, OFF).model is raw


@pytest.mark.parametrize("name", ["single", "dp"])
def test_a_checkpoint_has_the_names_of_the_tasks_own_model(name):
    """Loaded in another mode, it gives the same weights."""
    torch.manual_seed(0)
    there, here = (strategy_of(n)(Task(), nn.Linear(2, 1), JOB, OFF) for n in (name, "single"))
    optimizers = [torch.optim.SGD(s.raw.parameters(), lr=r, momentum=0.5)
                  for s, r in ((there, 0.25), (here, 1.0))]
    there.model(torch.ones(1, 2)).sum().backward()
    optimizers[0].step()
    state = there.full_state(optimizers[0])
    assert list(state["model"]) == ["weight", "bias"]
    here.load_full_state(state, optimizers[1])
    assert torch.equal(here.raw.weight, there.raw.weight)
    assert optimizers[1].param_groups[0]["lr"] == 0.25
    with pytest.raises(RuntimeError):
        here.load_full_state({"model": {}, "optimizer": {}}, optimizers[1])


def test_norm_and_clipping_by_hand():
    """Gradients (3, 0) and 4: their norm is 5."""
    strategy = strategy_of("single")(Task(), nn.Linear(2, 1), JOB, OFF)
    weight, bias = strategy.raw.weight, strategy.raw.bias
    weight.grad, bias.grad = torch.tensor([[3.0, 0.0]]), torch.tensor([4.0])
    unused = nn.Parameter(torch.ones(1))
    assert strategy.clip([weight, bias, unused], float("inf")).item() == 5
    assert bias.grad.tolist() == [4.0]
    assert strategy.clip([weight, bias, unused], 1.0).item() == 5
    assert weight.grad.tolist()[0] == pytest.approx([0.6, 0.0])
    assert bias.grad.tolist() == pytest.approx([0.8])


@pytest.mark.parametrize("name", modes.names())
def test_each_mode_has_its_strategy(name):
    assert issubclass(strategy_of(name), Strategy)


def test_an_unknown_mode_has_no_strategy():
    with pytest.raises(SpecError, match="ring"):
        strategy_of("ring")
