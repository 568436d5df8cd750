"""Means, and sums with counts: figures worked out by hand, wrong return values, fp16's scale."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gpu_engine import Task
from gpu_engine.common.errors import UserError
from gpu_engine.training.precision import StepLoss
from gpu_engine.worker.rank.group import Group
from gpu_engine.worker.rank.job import Identity

ALONE = Group(Identity(rank=0, local_rank=0, world_size=1, local_world_size=1))


def updates(*weights: nn.Parameter) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=1.0)


def test_a_step_is_all_sums_over_all_counts():
    """Losses 3w over 2 items and 5w over 6 items: the gradient of w is (3 + 5) / 8."""
    weight = nn.Parameter(torch.tensor(2.0))
    loss = StepLoss(2, ALONE, updates(weight))
    loss.of((3 * weight, 2), last=False).backward()
    loss.of((5 * weight, torch.tensor(6)), last=True).backward()
    assert loss.finish().item() == 2.0  # (3·2 + 5·2) / 8
    assert weight.grad.item() == 1.0
    # The next step does not depend on this one.
    weight.grad = None
    loss.of((9 * weight, torch.tensor([1.5])), last=False).backward()
    loss.of((0 * weight, 0), last=True).backward()
    shown = loss.finish()
    assert (shown.item(), shown.dtype, weight.grad.item()) == (12.0, torch.float64, 6.0)


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_loss_that_is_shown_keeps_no_graph(passes, device):
    """It may wait for a GPU for many steps, and would keep all activations of its step. A tensor on
    "meta", whose value is never known, stands in for one on a GPU."""
    weight = nn.Parameter(torch.tensor(2.0, device=device))
    loss = StepLoss(passes, ALONE, updates(weight))
    for left in reversed(range(passes)):
        loss.of(3 * weight, last=not left).backward()
    shown = loss.finish()
    if isinstance(shown, float):
        assert (shown, passes, device) == (6.0, 1, "cpu")
    else:
        assert not shown.requires_grad


def test_gradients_go_backward_at_the_size_of_a_mean():
    """A sum over a million items, times the scale, would overflow in fp16."""
    weight = nn.Parameter(torch.tensor(1.0))
    loss = StepLoss(1, ALONE, updates(weight))
    for count in (1_000_000, 1_900_000, 3_500_000, 6_500_000, 4_000_000):
        weight.grad = None
        loss.of((count * weight, count), last=True).backward()
        assert 0.4 < weight.grad.item() < 2
        loss.finish()
        assert weight.grad.item() == pytest.approx(1.0, rel=1e-6)


def test_the_reference_changes_no_bit():
    """A resumed run starts with another reference than the undisturbed run has at that step."""
    def gradient(*before: int) -> torch.Tensor:
        weight = nn.Parameter(torch.linspace(0.1, 3, 7))
        loss = StepLoss(1, ALONE, updates(weight))
        for count in (*before, 37):
            weight.grad = None
            loss.of(((weight.sin() * weight).sum() ** 3, count), last=True).backward()
            loss.finish()
        return weight.grad

    assert torch.equal(gradient(), gradient(1, 100_000))
    assert torch.equal(gradient(), gradient(3))


def test_gradients_of_every_kind_are_put_right():
    words = nn.Embedding(4, 2, sparse=True)
    half, single = (nn.Parameter(torch.ones(2, dtype=t)) for t in (torch.bfloat16, torch.float32))
    unused = nn.Parameter(torch.ones(1))
    loss = StepLoss(1, ALONE, updates(words.weight, half, single, unused))
    total = words(torch.tensor([1, 1])).sum() + half.sum() + single.sum()
    loss.of((total, 4), last=True).backward()
    loss.finish()
    assert words.weight.grad.to_dense().tolist() == [[0, 0], [0.5, 0.5], [0, 0], [0, 0]]
    assert half.grad.tolist() == single.grad.tolist() == [0.25, 0.25]
    assert unused.grad is None


def test_a_step_in_which_nothing_counts_has_no_loss():
    weight = nn.Parameter(torch.tensor(1.0))
    loss = StepLoss(1, ALONE, updates(weight))
    loss.of((0 * weight, 0), last=True).backward()
    assert loss.finish().isnan()
    # It does not affect the next step.
    weight.grad = None
    loss.of((6 * weight, 3), last=True).backward()
    assert loss.finish().item() == 2.0
    assert weight.grad.item() == 2.0


@pytest.mark.parametrize(("returned", "words"), [
    ((torch.tensor(1.0), 2, 3), "3 values"),
    ((torch.tensor(1.0), torch.ones(2)), r"count of shape \(2,\)"),
    ((torch.ones(3), 3), r"shape \(3,\)"),
    ((1.0, 2), "a float"),
    (torch.ones(3), r"shape \(3,\)"),
    (None, "NoneType"),
    ({"loss": 1}, "dict"),
])
def test_values_that_are_no_loss_are_refused(returned, words):
    with pytest.raises(UserError, match=words):
        StepLoss(1, ALONE, updates(nn.Parameter(torch.ones(1)))).of(returned, last=True)


def test_a_task_keeps_to_one_kind():
    loss = StepLoss(2, ALONE, updates(nn.Parameter(torch.ones(1))))
    loss.of(torch.tensor(1.0), last=False)
    with pytest.raises(UserError, match="always return the same"):
        loss.of((torch.tensor(1.0), 1), last=True)


class Words(Task):
    def __init__(self, counts: bool):
        self.counts = counts

    def loss(self, model, batch):
        return (batch.sum(), batch.numel()) if self.counts else batch.mean()


def test_the_default_metrics_take_both():
    """Three examples with five items each. A mean counts as one over examples; a sum comes with
    its own count."""
    batch = torch.arange(15.0).reshape(3, 5)
    summed, mean = Words(True).metrics(None, batch), Words(False).metrics(None, batch)
    assert (float(summed["loss"]), summed["count"]) == (105.0, 15)
    assert (float(mean["loss"]), mean["count"]) == (21.0, 3)
