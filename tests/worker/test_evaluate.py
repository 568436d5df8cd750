"""Evaluation counts each example once and gives the same bits at any world size (proof 4)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gpu_engine import Task
from gpu_engine.worker.evaluate import Broken, Evaluation
from gpu_engine.worker.identity import Identity
from gpu_engine.worker.params import build, load
from gpu_engine.worker.precision import Precision
from gpu_engine.worker.process_group import Group
from gpu_engine.worker.rng import seed_model

from . import ranks
from .conftest import TOY


@pytest.mark.parametrize("held_out", [1, 2, 100, 101])
def test_same_figure_from_one_two_and_three_ranks(make, held_out: int) -> None:
    """Before the first step, so that training itself adds no difference."""
    found = []
    for world in (1, 2, 3):
        run = make(f"w{world}", {"held_out": held_out, "double": False}, world=world, size=24,
                   train={"steps": 1, "lr": 1e-30})
        ranks.train(run)
        assert all(not ranks.read(run, r, "eval") for r in range(1, world))
        found.append(ranks.read(run, 0, "eval"))
    values = [{k: v for k, v in e[-1].items() if k != "t"} for e in found]
    assert values[0] == values[1] == values[2]
    # Each example once: the mean of their numbers says so.
    assert values[0]["numbers"] == (held_out - 1) / 2
    toy = build(load(TOY), {"double": False})
    seed_model(0)
    model = toy.model().eval()
    data = build(load(TOY), {"held_out": held_out, "double": False}).eval_data()
    with torch.no_grad():
        expected = (model(data.x) - data.y).double().square().mean().item()
    assert values[0]["loss"] == pytest.approx(expected, rel=1e-5)


def test_evaluated_after_each_epoch_and_at_the_end(make) -> None:
    run = ranks.train(make(params={"held_out": 10}, size=24, train={"epochs": 3}))
    assert [e["step"] for e in ranks.read(run, 0, "eval")] == [10, 20, 30]
    run = ranks.train(make("steps", {"held_out": 10}, size=24, train={"steps": 25}))
    assert [e["step"] for e in ranks.read(run, 0, "eval")] == [10, 20, 25]
    run = ranks.train(make("every", {"held_out": 10}, size=24,
                           train={"steps": 25, "eval_every": 10}))
    assert [e["step"] for e in ranks.read(run, 0, "eval")] == [10, 20, 25]


def test_evaluating_changes_nothing_in_training(make) -> None:
    from .conftest import recorded

    options = {"world": 2, "size": 24, "train": {"steps": 12, "eval_every": 2}}
    params = {"dropout": 0.5}
    runs = [ranks.train(make(str(n), {**params, "held_out": n}, **options)) for n in (0, 33)]
    assert recorded(runs[0]) == recorded(runs[1])


class Looks(Task):
    """Says in which modes the model is evaluated."""

    def __init__(self) -> None:
        self.seen: set[bool] = set()

    def metrics(self, model, batch):
        self.seen |= {module.training for module in model.modules()}
        if len(batch) == 1:
            raise ArithmeticError("the last chunk has one example")
        return {"loss": model(batch).sum(), "count": len(batch)}


@pytest.mark.parametrize("examples", [4, 5])
def test_each_module_is_back_in_its_own_mode(examples: int) -> None:
    """Frozen parts stay frozen, also where the evaluation fails; so does a model that trains in
    evaluation's mode altogether."""
    alone = Group(Identity(rank=0, local_rank=0, world_size=1, local_world_size=1))
    frozen = nn.Sequential(nn.Linear(3, 3), nn.Dropout()).eval()
    model = nn.Sequential(frozen, nn.BatchNorm1d(3), nn.Linear(3, 1))
    before = [module.training for module in model.modules()]
    assert before == [True, False, False, False, True, True]
    task = Looks()
    evaluation = Evaluation(task, list(torch.randn(examples, 3)), 2, alone, torch.device("cpu"))
    if examples % 2:
        with pytest.raises(Broken, match="one example"):
            evaluation.run(model, Precision("off", "cpu"))
    else:
        evaluation.run(model, Precision("off", "cpu"))
    assert task.seen == {False}
    assert [module.training for module in model.modules()] == before
    model.eval()
    if examples == 4:
        evaluation.run(model, Precision("off", "cpu"))
    assert not any(module.training for module in model.modules())
