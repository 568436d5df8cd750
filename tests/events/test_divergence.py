"""Which losses are said to have diverged, and which are not."""

from __future__ import annotations

import math
import random

import pytest

from gpu_engine.events import schema
from gpu_engine.events.divergence import Trend


def trend(losses, each=10):
    """A trend that was told of these losses, `each` of them in an event."""
    one = Trend()
    for at in range(0, len(losses), each):
        part = losses[at:at + each]
        one.fold(schema.Step(at + len(part), 0.1, 0, n=len(part), loss=sum(part) / len(part),
                             losses=tuple(part)))
    return one


def falling(steps, first=10.8, last=3.0):
    return [last + (first - last) * math.exp(-i / 100) for i in range(steps)]


def test_a_loss_that_has_lost_half_of_what_it_gained_has_diverged():
    found = trend(falling(1000) + [7.5] * 300).found
    assert found is not None
    assert (found.best_step, found.since, found.step) == (1000, 1000, 1300)
    assert (found.loss, found.best) == pytest.approx((7.5, 3.0), abs=0.01)


@pytest.mark.parametrize("losses", [
    falling(1000), falling(1000) + [7.5] * 190,  # it may come back
    falling(2000) + [7.5] * 390,  # for long, but not as long as it trained well
    falling(1000) + [7.5] * 300 + [3.1] * 50,  # it came back
    falling(1000) + [4.5] * 400,  # above its best, not far above
    [1.0] * 50 + [0.8] * 500 + [5.0] * 500,  # it had learned little
    [x - 3.5 for x in falling(1000) + [7.5] * 300],  # it was negative
    [*falling(1000), float("nan"), *[7.5] * 300],  # which is told otherwise
    [5.0] * 2000, []])
def test_nothing_is_said_of_other_losses(losses):
    assert trend(losses).found is None


def test_nothing_is_said_of_several_optimizers_or_trainings():
    for event in (schema.Training(2, 1000, "SGD", 0),
                  schema.Step(1001, 0.1, 0, n=0, others={1: schema.Other("SGD", 1, 1, 0.5)})):
        one = trend(falling(1000))
        one.fold(event)
        for step in range(1010, 1500, 10):
            one.fold(schema.Step(step, 0.1, 0, n=10, loss=7.5, loss_min=7.5))
        assert one.found is None


def test_noise_alone_does_not_diverge():
    draw = random.Random(0)
    assert not any(trend([draw.expovariate(1.0) for _ in range(1500)]).found for _ in range(1000))
    assert not any(trend([x * draw.expovariate(1.0) for x in falling(1500)]).found
                   for _ in range(1000))
