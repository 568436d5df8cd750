"""Evaluation counts each example once and gives the same bits at any world size."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gpu_engine import Task
from gpu_engine.common.errors import UserError
from gpu_engine.training.evaluate import Evaluation
from gpu_engine.training.precision import Precision
from gpu_engine.worker.rank.group import Group
from gpu_engine.worker.rank.job import Identity

from . import ranks
from .conftest import recorded


def test_a_model_in_evaluation_mode_is_trained_that_way_with_a_warning(make):
    options = {"world": 2, "size": 24, "train": {"steps": 6, "eval_every": 2}}
    frozen, plain = (ranks.train(make(name, {"held_out": 10, **params}, **options))
                     for name, params in (("frozen", {"dropout": 0.5, "frozen": True}),
                                          ("plain", {"dropout": 0.0})))
    assert recorded(frozen) == recorded(plain)
    assert ["evaluation mode" in e["message"] for e in ranks.read(frozen, 0, "warning")] == [True]
    assert not ranks.read(frozen, 1, "warning")
    assert not ranks.read(plain, 0, "warning")


ALONE = Group(Identity())


class Looks(Task):
    """Checks in which modes its modules are when it is evaluated."""

    def __init__(self):
        self.seen: set[tuple] = set()

    def metrics(self, model, batch):
        out = model(batch)
        self.seen |= {(module.training, torch.is_grad_enabled(), out.dtype)
                      for module in model.modules()}
        if len(batch) == 1:
            raise ArithmeticError("the last chunk has one example")
        return {"loss": out.float().sum(), "count": len(batch)}


@pytest.mark.parametrize("examples", [4, 5])
def test_each_module_is_back_in_its_own_mode(examples):
    """Frozen parts stay frozen, even if the evaluation fails; so does a model that is trained in
    evaluation mode as a whole. During the evaluation everything is in evaluation mode, without
    gradients and in the run's precision."""
    frozen = nn.Sequential(nn.Linear(3, 3), nn.Dropout()).eval()
    model = nn.Sequential(frozen, nn.BatchNorm1d(3), nn.Linear(3, 1))
    before = [module.training for module in model.modules()]
    assert before == [True, False, False, False, True, True]
    task, bf16 = Looks(), Precision("bf16", "cpu")
    evaluation = Evaluation(task, list(torch.randn(examples, 3)), 2, ALONE, [torch.device("cpu")])
    if examples % 2:
        with pytest.raises(ArithmeticError, match="one example"):
            evaluation.run(model, bf16)
    else:
        evaluation.run(model, bf16)
    assert task.seen == {(False, False, torch.bfloat16)}
    assert [module.training for module in model.modules()] == before
    model.eval()
    if examples == 4:
        evaluation.run(model, bf16)
    assert not any(module.training for module in model.modules())


class Merging(nn.Linear):
    """Merges a part into its weights for evaluation, as LoRA layers do."""

    merged = False

    def train(self, mode=True):
        self.merged = not mode
        return super().train(mode)


class KeepsFrozen(nn.Module):
    """Has a part that always stays in evaluation mode, even if `train` is called."""

    def __init__(self):
        super().__init__()
        self.frozen, self.head = Merging(3, 3), Merging(3, 1)
        self.train()

    def train(self, mode=True):
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, x):
        return self.head(self.frozen(x))


def test_modules_go_back_to_training_by_their_own_train():
    own, by_hand = KeepsFrozen(), nn.Sequential(Merging(3, 3).eval(), Merging(3, 1))
    for model in own, by_hand:
        frozen, head = model.children()
        Evaluation(Looks(), list(torch.randn(4, 3)), 2, ALONE, [torch.device("cpu")]).run(
            model, Precision("off", "cpu"))
        assert (frozen.training, frozen.merged) == (False, True)
        assert (model.training, head.training, head.merged) == (True, True, False)


class Gives(Task):
    """Returns given metrics, one set in each call."""

    def __init__(self, *metrics: dict):
        self.given = list(metrics)

    def metrics(self, model, batch):
        return self.given.pop(0)


def evaluated(*metrics: dict) -> dict[str, float]:
    evaluation = Evaluation(Gives(*metrics), [0] * len(metrics), 1, ALONE, [torch.device("cpu")])
    return evaluation.run(nn.Linear(1, 1), Precision("off", "cpu"))


def test_means_are_exact_and_names_the_same():
    # 2**24 + 1 is the first whole number that float32 does not hold.
    assert evaluated({"n": 2 ** 24 + 1, "loss": 1.5, "count": 1},
                     {"count": 3, "n": 1, "loss": torch.tensor(0.5)}) == {
                         "n": (2 ** 24 + 2) / 4, "loss": 0.5}
    assert evaluated({"n": 2 ** 24 + 1, "count": 1}) == {"n": 2 ** 24 + 1}
    for wrong in ([{"loss": 1.0}], [{"loss": 1.0, "count": 1}, {"accuracy": 1.0, "count": 1}],
                  [{"loss": 1.0, "count": 1}, {"loss": 1.0, "extra": 2.0, "count": 1}]):
        with pytest.raises(UserError, match="count"):
            evaluated(*wrong)


def test_a_stop_ends_an_evaluation_after_the_batch_under_way():
    class Counts(Task):
        calls = 0

        def metrics(self, model, batch):
            self.calls += 1
            return {"count": len(batch[0])}

    task, data = Counts(), torch.utils.data.TensorDataset(torch.zeros(8, 1))
    evaluation = Evaluation(task, data, 2, Group(Identity()), [torch.device("cpu")])
    assert evaluation.run(nn.Linear(1, 1), Precision("off", "cpu"), lambda: task.calls > 0) is None
    assert task.calls == 1
