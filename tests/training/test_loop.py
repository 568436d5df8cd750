"""What the loop does between two steps, in which order: its parts note what is asked of them."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from gpu_engine.common.errors import UserError
from gpu_engine.training.loop import Loop, NonFiniteLoss, Position
from gpu_engine.training.precision import Precision
from gpu_engine.worker.rank.group import Group
from gpu_engine.worker.rank.job import Identity
from gpu_engine.worker.rank.peers import End


class Record:
    """A recorder. `late`: a loss that only `settle` finds, as if it came from a GPU."""

    def __init__(self, did: list[Any]):
        self.did, self.nonfinite, self.late = did, None, {}
        self.training, self.phase, self.step_now, self.skipped = False, "init", 0, 0

    def step(self, step: int, epoch: int, loss: Any, lr: Any, examples: int, wait: float):
        self.did.append(("step", step, epoch, wait))

    def left_out(self, step: int, epoch: int, lr: Any):
        self.did.append(("left out", step, epoch, lr))

    def settle(self):
        self.nonfinite = self.nonfinite or self.late.pop(self.step_now, None)

    def mark(self):
        self.did.append("mark")

    def warn(self, text: str):
        self.did.append(text)


class Made:
    """A loop of three steps an epoch, and what its parts did."""

    def __init__(
            self, *, accumulate=1, epochs: int | None=None, steps: int | None=None, at:
            Position | None=None, last_step: Any = None, evaluation=True, **options: Any):
        self.did: list[Any] = []
        self.record = Record(self.did)
        self.group: Any = Group(Identity())
        self.group.peers = last_step
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.signals: Any = SimpleNamespace(stop_requested=False, put_back=lambda: "")
        self.data: Any = SimpleNamespace(
            epoch=lambda epoch, start: iter([torch.ones(2, 1)] * accumulate * (3 - start)))
        self.precision = Precision("off", "cpu")
        strategy: Any = SimpleNamespace(
            model=model, raw=model, local_gradients=nullcontext, check=lambda: None,
            check_pass=lambda: None, clip=lambda parameters, limit: nn.utils.clip_grad_norm_(
                parameters, limit))
        train = {"clip": 0.0, "on_nonfinite": "stop", "eval_every": 0, "checkpoint_every": 0,
                 "skip_steps": ()} | options
        self.loop = loop = Loop.__new__(Loop)
        parts: dict[str, Any] = {
            "task": SimpleNamespace(loss=lambda model, batch: model(batch).square().mean()),
            "schedule": SimpleNamespace(step=lambda: None), "recorder": self.record,
            "job": SimpleNamespace(spec=SimpleNamespace(train=SimpleNamespace(**train)),
                                   batch=SimpleNamespace(accumulate=accumulate), micro=2),
            "evaluation": evaluation, "evaluate": self.evaluate, "check_state": lambda: None,
            "save": lambda: self.did.append("save"), "data": self.data, "strategy": strategy,
            "optimizer": optimizer, "precision": self.precision, "group": self.group,
            "signals": self.signals, "at": at or Position(), "total_steps": steps,
            "epochs": epochs, "steps_per_epoch": None}
        vars(loop).update(parts)
        loop.__init__()

    def evaluate(self) -> bool:
        self.did.append("evaluate")
        return True

    def acts(self) -> list[str]:
        """All but the steps' figures and the first mark, "step" for each step."""
        return ["step" if isinstance(act, tuple) else act for act in self.did][1:]


def test_an_epoch_is_evaluated_at_its_end_but_for_the_last_which_is_saved_first():
    made = Made(epochs=3)
    assert made.loop.train() == "completed"
    three = ["step"] * 3
    assert made.acts() == [*three, "evaluate", "mark", *three, "evaluate", "mark", *three]
    assert [act[1:3] for act in made.did if isinstance(act, tuple)] == [
        (step, (step - 1) // 3) for step in range(1, 10)]
    assert made.loop.at == Position(9, 3, 0)


def test_a_step_that_is_left_out_counts_and_takes_its_batches():
    made = Made(steps=5, accumulate=2, evaluation=None, skip_steps=["1", "3-5"])
    assert made.loop.train() == "completed"
    assert [act[:3] for act in made.did if isinstance(act, tuple)] == [
        ("left out", 1, 0), ("step", 2, 0), ("left out", 3, 0), ("left out", 4, 1),
        ("left out", 5, 1)]
    assert (made.record.skipped, made.record.step_now, made.loop.at) == (4, 5, Position(5, 1, 2))


def test_a_run_goes_on_after_an_epochs_last_step():
    """Of a stream, whose length is unknown: the epoch has no step left."""
    made = Made(steps=5, at=Position(3, 0, 3))
    assert made.loop.train() == "completed"
    assert made.loop.at == Position(5, 1, 2)


@pytest.mark.parametrize("due", [{"checkpoint_every": 2}, {"eval_every": 2}], ids=str)
def test_a_loss_that_arrives_late_is_waited_for_before_weights_are_saved_or_evaluated(due):
    made = Made(steps=5, **due)
    made.record.late = {2: (1, float("nan"))}
    with pytest.raises(NonFiniteLoss, match="at step 1"):
        made.loop.train()
    assert made.acts() == ["step", "step"]


@pytest.mark.parametrize("due", [{"checkpoint_every": 2}, {"eval_every": 2}], ids=str)
def test_a_stop_that_another_rank_has_heard_comes_before_a_save_and_an_evaluation(due):
    made = Made(steps=5, **due)
    asked = made.group.all_reduce_max
    made.group.all_reduce_max = lambda values: [asked(values)[0], 1.0]
    assert made.loop.train() == "stopped"
    assert made.acts()[:2] == ["step", "step"]
    assert not {"save", "evaluate"} & set(made.acts())


def test_what_is_wrong_with_the_training_of_another_rank_is_raised_at_the_common_end():
    last_step = SimpleNamespace(bound=2, begin=lambda steps, reason: None, wait=lambda: None,
                                reached=lambda: End(True, None, "rank 1 has thawed a weight"))
    made = Made(steps=5, last_step=last_step)
    with pytest.raises(UserError, match="rank 1 has thawed a weight"):
        made.loop.train()
    assert made.loop.at.step == 2


@pytest.mark.parametrize(("due", "act"), [({"checkpoint_every": 2}, "save"),
                                          ({"eval_every": 2}, "evaluate")])
def test_what_is_due_at_the_last_step_is_left_to_the_end_of_the_run(due, act):
    made = Made(steps=4, evaluation="eval_every" in due or None, **due)
    assert made.loop.train() == "completed"
    assert made.acts() == ["step", "step", act, "mark", "step", "step"]


def test_the_state_is_checked_after_the_first_step_that_was_not_skipped():
    made = Made(steps=4, evaluation=None, on_nonfinite="skip")
    good = iter([False, False, True, True])
    made.loop.check_state = lambda: made.did.append("check")
    made.precision.step = lambda *about: next(good)
    made.loop.train()
    assert made.acts() == ["step", "step", "step", "check", "step"]


def test_of_bad_losses_in_each_step_one_warning_is_enough_for_a_while():
    made, step = Made(steps=5, on_nonfinite="continue"), Record.step

    def bad(number: int, *about: Any):
        made.record.nonfinite = (number, float("nan"))
        step(made.record, number, *about)

    made.record.step = bad
    made.loop.train()
    assert [act for act in made.acts() if "loss" in act] == [
        "the loss of rank 0 at step 1 is nan; training goes on"]
