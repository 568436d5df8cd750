"""Losses on their way from a GPU, without one: tests/gpu has the same on a GPU."""

from __future__ import annotations

import pytest
import torch

from gpu_engine.observe.loss import MOST, Coming, Losses, PendingLoss, has_arrived, value_of
from gpu_engine.observe.optimizers import Optimizers
from gpu_engine.worker.rank.pinned import EMPTY, Ring


@pytest.fixture
def ring():
    return Ring(4, pin=False)


def test_numbers_arrive_and_make_room(ring):
    for value in (1.5, float("nan"), float("-inf"), 0.0):
        slot = ring.put(torch.tensor(value))
        assert ring.arrived(slot)
        assert str(ring.take(slot)) == str(value)
        assert not ring.arrived(slot)


def test_a_full_ring_loses_a_value_instead_of_waiting(ring):
    slots = [ring.put(torch.tensor(float(i))) for i in range(5)]
    assert slots[-1] is None
    assert [ring.take(s) for s in slots[:4]] == [0, 1, 2, 3]
    assert ring.put(torch.tensor(9.0)) is not None


def test_a_sum_has_arrived_when_all_its_parts_have(ring):
    a, b = ring.put(torch.tensor(6.0)), ring.put(torch.tensor(4.0))
    late = ring.bits[b]
    ring.bits[b] = EMPTY
    value = PendingLoss(ring, [1.0, Coming((a, b), 0.5)])
    assert not has_arrived(value)
    ring.bits[b] = late
    assert has_arrived(value)
    assert value_of(value) == 1.0 + 6.0 / 4.0 / 2
    bad = ring.put(torch.tensor(float("nan")))
    assert PendingLoss(ring, [Coming((bad,), 0.0), 2.0]).take() == 2.0  # another stands for it
    assert not ring.arrived(bad)  # its slot is free


def test_a_loss_without_a_number_is_unknown_and_not_zero():
    losses = Losses()
    x = torch.randn(3, 2, requires_grad=True)
    losses.add(torch.tensor(2.0), None)
    losses.add(x * 2, torch.ones(3, 2))  # a stage of a pipeline, and no loss was made of it
    assert losses.take() is None
    for rows, shown in ((x * 2, 1.0), ((x * 2).sum(1), None)):  # may be losses and their weights
        losses.add((rows.detach().requires_grad_() * 0 + 1).mean(), None)
        losses.add(rows, torch.ones_like(rows))
        assert losses.take() == shown
    losses.add([torch.tensor(2.0), torch.tensor([1.0, 2.0])], [None, torch.tensor([1.0, 0.5])])
    assert losses.take() == 4.0
    assert losses.take() is None


def test_what_a_second_loss_stands_for_is_unknown_once_if_the_first_was_not_asked():
    losses = Losses()
    for _ in range(200):
        losses.add(torch.tensor(3.0), None)
        assert losses.take() == 3.0
    for shown in (None, 1.0, 1.0):
        rows = torch.ones(3, 2, requires_grad=True) * 2
        losses.add((rows.detach().requires_grad_() * 0 + 1).mean(), None)
        losses.add(rows, torch.ones(3, 2))
        assert losses.take() == shown


def test_a_rank_that_has_a_part_of_the_loss_is_shown_as_a_whole(ring):
    losses = Losses()
    losses.weight = 2.0  # FSDP adds up what two ranks have
    losses.add(torch.tensor(1.5), None)
    assert losses.take() == 3.0
    assert PendingLoss(ring, [Coming((ring.put(torch.tensor(1.5)),))], 2.0).take() == 3.0
    losses.weight = None
    losses.add(torch.tensor(1.5), None)
    assert losses.take() is None


def test_a_scaled_loss_is_traced_to_the_unscaled_one():
    losses, scale = Losses(), torch.tensor(1024.0)
    loss = torch.tensor(0.1)
    scaled = loss * scale
    losses.scaled(scaled, loss, scale)
    losses.add(scaled, None)
    assert losses.take() == loss.item()
    other = [t * scale for t in (loss, loss)]
    losses.scaled(other, [loss, loss], scale)
    losses.add(sum(other), None)
    assert losses.take() == pytest.approx(0.2)
    losses.add(loss * 3, None)  # a plain one behind it, as of a second optimizer
    assert losses.take() == pytest.approx(0.3)


def test_thousands_of_losses_without_a_step_are_one_sum():
    losses, x = Losses(), torch.randn(3, 2, requires_grad=True)
    for _ in range(2 * MOST + 500):
        losses.add(torch.tensor(1.0), None)
    assert len(losses.parts) <= MOST
    assert losses.take() == 2 * MOST + 500
    losses.add(x * 2, torch.ones(3, 2))  # its loss is unknown, and so is the sum
    for _ in range(MOST + 500):
        losses.add(torch.tensor(1.0), None)
    assert losses.take() is None


def test_an_optimizer_where_another_was_in_memory_is_a_new_one():
    known, weights = Optimizers(), [torch.nn.Parameter(torch.ones(1))]
    first = torch.optim.SGD(weights)
    known.stepped(first, 1.0)
    muon = torch.optim.Adagrad(weights)
    assert known.stepped(muon, None) == (None, False)  # beside it, on the same loss
    del first
    second = torch.optim.Adam(weights)
    one, begins = known.stepped(second, 1.0)
    assert (one.name, begins) == ("Adam", True)
