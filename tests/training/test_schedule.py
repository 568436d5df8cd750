"""A resumed schedule is as in a run that has had the new values from its start. Compared with loops
in plain torch."""

from __future__ import annotations

import ast
import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gpu_engine import Task
from gpu_engine.training.schedule import Schedule

from . import ranks, schedules
from .schedules import SCHEDULES, optimizer_of, settings

USE = f"{schedules.__file__}:Scheduled"


def plain(which: str, kind: str, total: int, lr: float, steps: int) -> list[list[dict[str, Any]]]:
    """The optimizer's settings in each of `steps` steps of a loop in plain torch."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    opt = optimizer_of(kind, model, lr)
    schedule = SCHEDULES[which](opt, total, lr)
    seen = []
    for _ in range(steps):
        model(torch.ones(2, 3)).sum().backward()
        seen.append(settings(opt))
        opt.step()
        schedule.step()
    return seen


class Run:
    """A run of the task in schedules.py, whose attempts write down their settings."""

    def __init__(self, path: Path, **params: Any):
        self.path, self.params, self.attempts = path, params, 0

    def attempt(self, *, size=8, world=1, expect=0, **train: Any) -> list[list[dict[str, Any]]]:
        """Train once more; the settings of each step of this attempt, on rank 0."""
        self.attempts += 1
        ranks.write_plan(self.path, USE, size=size, world=world, train=train,
                         params={**self.params, "record": str(self.path / "settings")})
        ranks.train(self.path, attempt=self.attempts, expect=expect)
        record = self.path / f"settings-{self.attempts}"
        return [ast.literal_eval(line) for line in record.read_text().splitlines()] \
            if record.exists() else []


@pytest.mark.parametrize("which", SCHEDULES)
def test_resumed_with_more_steps_and_another_rate(tmp_path, which):
    run = Run(tmp_path, which=which)
    assert run.attempt(steps=20) == plain(which, "AdamW", 20, 0.01, 20)
    assert run.attempt(steps=44, lr=0.03) == plain(which, "AdamW", 44, 0.03, 44)[20:]
    assert "Warning" not in ranks.logs(tmp_path)


def test_epochs_and_batch_make_another_total(tmp_path):
    """40 examples: 5 steps an epoch of 8, 10 of 4."""
    run = Run(tmp_path, which="OneCycleLR", kind="SGD")
    assert run.attempt(epochs=2) == plain("OneCycleLR", "SGD", 10, 0.01, 10)
    assert run.attempt(epochs=3) == plain("OneCycleLR", "SGD", 15, 0.01, 15)[10:]
    assert run.attempt(epochs=5, size=4) == plain("OneCycleLR", "SGD", 35, 0.01, 35)[15:]


def test_an_unchanged_schedule_goes_on(tmp_path):
    """Killed in step 14 of 20, after the checkpoint of step 12. Training waits for that write, as
    killing the process would end a write in its thread."""
    train = {"steps": 20, "checkpoint_every": 6, "checkpoint_async": False}
    for which in ("SequentialLR", "OneCycleLR"):
        run = Run(tmp_path / which, which=which, kill_at=14)
        whole = plain(which, "AdamW", 20, 0.01, 20)
        assert run.attempt(**train, expect=-9) == whole[:14]
        assert run.attempt(**train) == whole[12:]


def test_only_steps_that_were_taken_count(tmp_path):
    """Two of the first 20 steps are skipped, so the schedule has advanced 18 times by then."""
    run = Run(tmp_path, which="OneCycleLR", nan_at=[4, 9])
    first = run.attempt(steps=20, on_nonfinite="skip")
    whole = plain("OneCycleLR", "AdamW", 20, 0.01, 18)
    assert first == [*whole[:4], whole[3], *whole[4:8], whole[7], *whole[8:]]
    run.params["nan_at"] = []
    assert run.attempt(steps=40, on_nonfinite="skip") == plain(
        "OneCycleLR", "AdamW", 40, 0.01, 38)[18:]


def test_a_changed_option_of_the_optimizer_counts_and_its_moments_stay(tmp_path):
    run = Run(tmp_path, which="CosineAnnealingLR", decay=0.01)
    run.attempt(steps=10)
    run.params["decay"] = 0.5
    seen = run.attempt(steps=20)
    assert {g["weight_decay"] for groups in seen for g in groups} == {0.5}
    saved = ranks.last(tmp_path)
    assert {float(s["step"]) for s in saved["optimizer"]["state"].values()} == {20.0}


def test_values_that_an_optimizer_learns_in_its_options_stay():
    """Like Prodigy's estimate `d`, which neither the task nor a schedule sets. The learning rate is
    a tensor, as compiled or captured optimizers need it."""
    def made(lr: float, total: int) -> tuple[torch.optim.Optimizer, Schedule]:
        class Own(Task):
            def schedule(self, optimizer, total_steps):
                return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total_steps)

        rate = torch.tensor(lr, dtype=torch.float64)
        opt = torch.optim.Adam([{"params": [nn.Parameter(torch.ones(2))], "d": 1e-6}], lr=rate)
        return opt, Schedule(Own(), opt, total, evaluates=False)

    opt, schedule = made(0.1, 10)
    for _ in range(4):
        opt.step()
        schedule.step()
    opt.param_groups[0]["d"] = 0.5
    saved = copy.deepcopy({"optimizer": opt.state_dict(), **schedule.state_dict()})
    for lr, total in ((0.1, 10), (0.1, 20), (0.3, 10)):
        opt, schedule = made(lr, total)
        opt.load_state_dict(copy.deepcopy(saved["optimizer"]))
        schedule.restore(copy.deepcopy(saved), 4)
        twin, undisturbed = made(lr, total)
        for step in range(6):
            if step >= 4:
                schedule.step()
            twin.step()
            undisturbed.step()
        assert opt.param_groups[0]["d"] == 0.5
        assert isinstance(opt.param_groups[0]["lr"], torch.Tensor)
        assert opt.param_groups[0]["lr"].item() == twin.param_groups[0]["lr"].item()


def test_a_changed_parameter_of_the_task_counts():
    """Even if only a function of the schedule uses it, which is not part of its state, and for
    options that torch's own schedules never move."""
    class Decays(torch.optim.lr_scheduler.MultiplicativeLR):
        def step(self, *args):
            super().step(*args)
            if self.last_epoch:
                self.optimizer.param_groups[0]["weight_decay"] *= self.lr_lambdas[0](0)

    def made(factor: float) -> tuple[torch.optim.Optimizer, Schedule]:
        class Own(Task):
            def schedule(self, optimizer, total_steps):
                return Decays(optimizer, lambda step: factor)

        opt = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=1.0, weight_decay=1.0)
        return opt, Schedule(Own(), opt, 10, evaluates=False)

    opt, schedule = made(0.5)
    for _ in range(3):
        opt.step()
        schedule.step()
    saved = copy.deepcopy({"optimizer": opt.state_dict(), **schedule.state_dict()})
    for factor in (0.5, 0.25):
        opt, schedule = made(factor)
        opt.load_state_dict(copy.deepcopy(saved["optimizer"]))
        schedule.restore(copy.deepcopy(saved), 3)
        assert opt.param_groups[0]["lr"] == factor ** 3
        assert opt.param_groups[0]["weight_decay"] == factor ** 3


def test_no_schedule_takes_the_new_rate(tmp_path):
    run = Run(tmp_path)
    run.attempt(steps=3)
    assert [[g["lr"] for g in groups] for groups in run.attempt(steps=4, lr=0.04)] == [[0.04, 0.01]]


@pytest.mark.parametrize(("first", "then", "words"), [
    ({"steps": 6}, {"steps": 5}, "train.steps = 5: the checkpoint to go on from is already at "
                                 "step 6"),
    ({"epochs": 2}, {"epochs": 1}, "train.epochs = 1: the checkpoint to go on from is already "
                                   "in epoch 3"),
])
def test_fewer_steps_than_are_done_are_refused(tmp_path, first, then, words):
    run = Run(tmp_path, which="OneCycleLR")
    run.attempt(**first)
    run.attempt(**then, expect=1)
    assert ranks.read(tmp_path, 0, "error")[-1]["message"] == words
    assert run.attempt(**first) == []


# --- ReduceLROnPlateau ------------------------------------------------------------------------

def plateau(values: list[float], lr: float, **options: Any) -> float:
    """The learning rate of the first group after an evaluation gave each of `values`."""
    opt = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=lr)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, threshold=0.2, **options)
    for value in values:
        schedule.step(value)
    return opt.param_groups[0]["lr"]


def test_plateau_steps_on_each_evaluation(tmp_path):
    """Evaluated every second step, resumed with more steps, another rate, another patience."""
    run = Run(tmp_path, which="ReduceLROnPlateau", patience=0)
    seen: list[float] = []
    for options, lr, patience in (({"steps": 11}, 0.01, 0), ({"steps": 21}, 0.01, 0),
                                  ({"steps": 31, "lr": 0.08}, 0.08, 0),
                                  ({"steps": 41, "lr": 0.08}, 0.08, 2)):
        run.params["patience"] = patience
        before = len(seen)
        seen += [groups[0]["lr"] for groups in run.attempt(**options, eval_every=2)]
        values = [e["loss"] for e in ranks.read(tmp_path, 0, "eval") if e["step"] % 2 == 0]
        expected = [plateau(values[:step // 2], lr, patience=patience)
                    for step in range(before, len(seen))]
        assert seen[before:] == expected
    assert len(set(seen)) > 4, "the rate was never lowered: the test proved nothing"


def test_plateau_needs_an_evaluation_and_a_name(tmp_path):
    refused = {
        "eval": ({"held_out": 0}, "there is no evaluation: give the task an eval_data"),
        "max": ({"mode": "max"}, "set schedule_metric in the task to the name of that value"),
        "name": ({"mode": "max", "metric": "accuracy"}, "the schedule steps on the evaluation's "
                                                      "'accuracy', but it gives loss"),
    }
    for name, (params, words) in refused.items():
        run = Run(tmp_path / name, which="ReduceLROnPlateau", **params)
        run.attempt(steps=4, eval_every=2, expect=1)
        assert words in ranks.read(run.path, 0, "error")[-1]["message"]
    run = Run(tmp_path / "fits", which="ReduceLROnPlateau", mode="max", metric="loss")
    assert len(run.attempt(steps=4, eval_every=2)) == 4
