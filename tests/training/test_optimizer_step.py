"""A step without the profiler's record does what `optimizer.step()` does, and leaves out only what
nobody would see."""

from __future__ import annotations

import functools
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gpu_engine.training import optimizer_step
from gpu_engine.training.precision import Precision
from tests.training.whole import WHOLE


@pytest.fixture
def records(monkeypatch):
    """The names of the records that were made for a profiler."""
    made = []
    own = torch.autograd.profiler.record_function

    def counted(name, *args):
        made.append(name)
        return own(name, *args)

    monkeypatch.setattr(torch.autograd.profiler, "record_function", counted)
    return made


def weight():
    made = nn.Parameter(torch.tensor([1.0, -2.0]))
    made.grad = torch.tensor([0.5, 0.25])
    return made


def test_plain_sgd_by_hand(records):
    of = weight()
    optimizer_step.step(torch.optim.SGD([of], lr=0.1))
    assert torch.equal(of, torch.tensor([1.0, -2.0]) - 0.1 * torch.tensor([0.5, 0.25]))
    assert not records


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW,
                                  torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.NAdam])
def test_same_bits_as_its_own_step(kind, records):
    ours, own = weight(), weight()
    here, there = kind([ours], lr=0.1), kind([own], lr=0.1)
    for _ in range(3):
        optimizer_step.step(here)
    assert not records
    for _ in range(3):
        there.step()
    assert len(records) == 3
    assert torch.equal(ours, own)


def test_the_engine_steps_this_way(records):
    of = weight()
    assert Precision("off", "cpu").step(torch.optim.SGD([of], lr=0.1), 0.0, WHOLE)
    assert not records
    assert of.tolist() != [1.0, -2.0]


@pytest.mark.parametrize("hook", ["pre", "post"])
@pytest.mark.parametrize("everywhere", [False, True], ids=["its own", "of all"])
def test_hooks_are_called(hook, everywhere):
    optimizer, called = torch.optim.SGD([weight()], lr=0.1), []
    register = getattr(optimizer, f"register_step_{hook}_hook")
    if everywhere:
        register = {"pre": register_optimizer_step_pre_hook,
                    "post": register_optimizer_step_post_hook}[hook]
    handle = register(lambda *_: called.append(1))
    try:
        optimizer_step.step(optimizer)
    finally:
        handle.remove()
    assert called == [1]
    optimizer_step.step(optimizer)
    assert called == [1]


def test_profiler_sees_the_step():
    optimizer = torch.optim.SGD([weight()], lr=0.1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        optimizer_step.step(optimizer)
    assert "Optimizer.step#SGD.step" in [each.key for each in seen.key_averages()]


def test_older_profiler_sees_the_step():
    optimizer = torch.optim.SGD([weight()], lr=0.1)
    with torch.autograd.profiler.profile(use_kineto=False) as seen:
        optimizer_step.step(optimizer)
    assert "Optimizer.step#SGD.step" in [each.name for each in seen.function_events or []]


def test_decorated_step_is_called_whole():
    """A decorator over torch's wrapper copies its signs: `hooked`, `__wrapped__`, the name."""
    called = []

    def decorated(function):
        @functools.wraps(function)
        def step(self, *args, **kwargs):
            called.append(1)
            return function(self, *args, **kwargs)
        return step

    torch.optim.SGD([weight()], lr=0.1)  # has torch wrap SGD's step
    step = decorated(torch.optim.SGD.step)
    assert vars(step)["hooked"]
    kind = type("Decorated", (torch.optim.SGD,), {"step": step})
    optimizer_step.step(kind([weight()], lr=0.1))
    assert called == [1]


def test_own_subclass_is_stepped_by_its_own_step():
    class Counting(torch.optim.SGD):
        steps = 0

        def step(self, closure=None):
            self.steps += 1
            return super().step(closure)

    of = weight()
    optimizer = Counting([of], lr=0.1)
    optimizer_step.step(optimizer)
    assert optimizer.steps == 1
    assert of.tolist() != [1.0, -2.0]


def test_step_put_on_the_optimizer_is_called(monkeypatch):
    optimizer, called = torch.optim.SGD([weight()], lr=0.1), []
    monkeypatch.setattr(optimizer, "step", lambda: called.append(1))
    optimizer_step.step(optimizer)
    assert called == [1]


def test_what_only_looks_like_an_optimizer_is_stepped():
    called = []
    optimizer_step.step(SimpleNamespace(step=lambda: called.append(1)))  # pyright: ignore
    assert called == [1]


def test_schedule_knows_of_the_step():
    """A schedule warns if it is stepped with no step of the optimizer before it."""
    optimizer = torch.optim.SGD([weight()], lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer_step.step(optimizer)
        schedule.step()


@pytest.mark.parametrize("gone", ["_WRAPPER", "_optim", "_profiled"])
def test_another_torch_steps_all_the_same(gone, monkeypatch, records):
    """One that has none of the names of its own that this needs."""
    monkeypatch.setattr(optimizer_step, gone, (lambda: True) if gone == "_profiled" else None)
    of = weight()
    optimizer_step.step(torch.optim.SGD([of], lr=0.1))
    assert len(records) == 1
    assert of.tolist() != [1.0, -2.0]
