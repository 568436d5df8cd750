"""Compares the engine's training with the same training written by hand in plain torch.

The loop by hand uses whole global batches on one device. It takes the examples of each step from
what the ranks have written down; `test_modes` proves that these are the right examples.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from gpu_engine.training import checkpoint

from . import ranks
from .by_hand_task import Twice, TwoHeads, examples, weights

TASK = f"{Path(__file__).with_name('by_hand_task.py')}:ByHand"
BY_DEFAULT = TASK.replace(":ByHand", ":ByDefault")


def run_engine(folder: Path, world: int, *, params: dict | None = None, **options) -> Path:
    folder.mkdir()
    run = ranks.write_plan(folder, TASK, world=world,
                           params={"record": str(folder), **(params or {})}, **options)
    return ranks.train(run)


def seen(run: Path, world: int, accumulate: int) -> list[list[int]]:
    """The numbers of the examples in each step, over all ranks and passes."""
    each = [[json.loads(line) for line in (run / f"{r}.jsonl").read_text().splitlines()]
            for r in range(world)]
    return [[n for r in range(world) for a in range(accumulate)
             for n in each[r][s * accumulate + a]] for s in range(len(each[0]) // accumulate)]


def shown(run: Path, world: int) -> list[float]:
    """The loss of each step as the screen shows it: the mean over the ranks."""
    each = [[x for e in ranks.read(run, r, "step") for x in e["losses"]] for r in range(world)]
    return [sum(losses) / world for losses in zip(*each, strict=True)]


def by_hand(
        steps: list[list[int]], *, many=120, counts=False, lr=0.01, clip=0.0, sgd=False,
        cosine=False, decays: list[float] | None=None) -> tuple[list[float], list[float],
        dict[str, torch.Tensor]]:
    """(losses, learning rates, final weights)."""
    net = weights()
    kind = torch.optim.SGD if sgd else torch.optim.AdamW
    optimizer = kind(net.parameters(), lr=lr)
    x, y, items = examples(many)
    losses, rates = [], []
    for number, step in enumerate(steps):
        if cosine:  # Loshchilov and Hutter 2017, eq. 5, down to 0 at the last step
            optimizer.param_groups[0]["lr"] = lr * (1 + math.cos(
                math.pi * number / len(steps))) / 2
        if decays is not None:
            optimizer.param_groups[0]["weight_decay"] = decays[number]
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.zero_grad()
        error = (net(x[step]) - y[step]).square().squeeze(1)
        weigh = items[step] if counts else torch.ones(len(step))
        loss = (error * weigh).sum() / weigh.sum()
        loss.backward()
        if clip:
            norm = torch.stack([p.grad.norm() for p in net.parameters()]).norm()
            for p in net.parameters():
                p.grad.mul_(min(1.0, clip / (float(norm) + 1e-6)))
        optimizer.step()
        losses.append(loss.item())
    return losses, rates, net.state_dict()


def assert_same_weights(found: dict, wanted: dict):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("counts", "world", "accumulate", "mode"), [
    (False, 1, 1, "single"), (False, 1, 2, "dp"), (False, 2, 3, "ddp"),
    (True, 1, 4, "single"), (True, 2, 3, "ddp"), (True, 3, 2, "ddp")])
def test_every_mode_trains_as_by_hand(tmp_path, counts, world, accumulate, mode):
    """With means, and with sums and counts; clipped; with a schedule over two epochs.

    An example has 0 to 7 items, so that the counts of ranks and passes differ a lot.
    """
    run = run_engine(tmp_path / "run", world, mode=mode, accumulate=accumulate, size=12,
                     params={"counts": counts, "cosine": True},
                     train={"epochs": 2, "clip": 0.7})
    steps = seen(run, world, accumulate)
    assert len(steps) == 20
    for epoch in (steps[:10], steps[10:]):
        assert sorted(n for step in epoch for n in step) == list(range(120))
    assert steps[:10] != steps[10:]
    losses, rates, wanted = by_hand(steps, counts=counts, clip=0.7, cosine=True)
    assert shown(run, world) == pytest.approx(losses, rel=1e-7)  # events have nine digits
    assert_same_weights(ranks.last(run)["model"], wanted)
    # An event has the learning rate of the last step that it covers.
    told = {e["step"]: e["lr"] for e in ranks.read(run, 0, "step")}
    assert told == {s: pytest.approx(rates[s - 1], rel=1e-9, abs=1e-12) for s in told}


@pytest.mark.parametrize(("kind", "option"), [("heads", "find_unused"), ("twice", "static_graph")])
def test_options_of_ddp_with_accumulation(tmp_path, kind, option):
    """Each case needs its option: without it PyTorch raises."""
    run = run_engine(tmp_path / "run", 2, accumulate=3, size=12, parallel={option: True},
                     params={"kind": kind, "sgd": True}, train={"epochs": 1, "lr": 0.1})
    net = TwoHeads() if kind == "heads" else Twice(False)
    x, y, _ = examples(120)
    passes = [[json.loads(line) for line in (run / f"{r}.jsonl").read_text().splitlines()]
              for r in range(2)]
    for step in range(10):
        net.zero_grad()
        for mine in (p for r in range(2) for p in passes[r][3 * step:3 * step + 3]):
            out = net(x[mine], mine[0] % 2) if kind == "heads" else net(x[mine])
            ((out - y[mine]).square().mean() / 6).backward()
        with torch.no_grad():
            for value in net.parameters():
                if value.grad is not None:
                    value -= 0.1 * value.grad
    assert_same_weights(ranks.last(run)["model"], net.state_dict())


@pytest.mark.parametrize("clip", [0.0, 0.3])
def test_fp16_as_by_hand_and_over_a_resume(tmp_path, clip):
    """The loop by hand uses PyTorch's GradScaler: the same steps are skipped, the schedule does not
    advance in them, and the scale survives a resume."""
    options = {"size": 12, "amp": {"dtype": "fp16"}, "mode": "ddp",
               "params": {"half": True, "decay": True}}
    run = run_engine(tmp_path / "run", 1, train={"steps": 14, "clip": clip}, **options)
    options["params"]["record"] = str(run)
    ranks.write_plan(run, TASK, train={"steps": 30, "clip": clip}, **options)
    ranks.train(run, attempt=2)
    steps = seen(run, 1, 1)
    assert len(steps) == 30

    net = weights().float()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    scaler = torch.amp.GradScaler("cpu")
    x, y, _ = (part.float() for part in examples(120))
    losses, rates, left_out = [], [], []
    for step in steps:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = 100 * (net(x[step]) - y[step]).square().mean()
        losses.append(loss.item())
        rates.append(optimizer.param_groups[0]["lr"])
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        left_out.append(scaler.get_scale() < before)
        if not left_out[-1]:
            schedule.step()
    assert 3 < sum(left_out) < 13, "the scale must settle before the resume"
    assert shown(run, 1) == pytest.approx(losses, rel=1e-6)
    told = ranks.read(run, 0, "step")
    assert {e["step"]: e["lr"] for e in told} == {
        e["step"]: pytest.approx(rates[e["step"] - 1], rel=1e-9) for e in told}
    assert told[-1]["skipped"] == sum(left_out)
    state = ranks.last(run)
    assert state["skipped"] == sum(left_out)
    assert state["scaler"]["scale"] == scaler.get_scale()
    for name, value in net.state_dict().items():
        torch.testing.assert_close(state["model"][name], value, rtol=1e-5, atol=1e-7)


def test_weight_decay_reaches_the_default_optimizer_and_changes_with_a_resume(tmp_path):
    run = tmp_path / "run"
    for attempt, train in enumerate((
            {"steps": 4, "weight_decay": 0.9}, {"steps": 7, "weight_decay": 0.2},
            {"steps": 9}), start=1):
        ranks.write_plan(run, BY_DEFAULT, world=2, size=12, params={"record": str(run)},
                         train=train)
        ranks.train(run, attempt=attempt)
    steps = seen(run, 2, 1)
    assert len(steps) == 9
    _, _, wanted = by_hand(steps, decays=[0.9] * 4 + [0.2] * 3 + [0.01] * 2)  # PyTorch's own: 0.01
    assert_same_weights(ranks.last(run)["model"], wanted)
    _, _, without = by_hand(steps)
    assert any((without[n] - wanted[n]).abs().max() > 1e-3 for n in wanted)


def test_weight_decay_for_an_optimizer_of_the_tasks_own_is_refused(tmp_path):
    run = ranks.write_plan(tmp_path / "run", TASK, size=12, params={"record": str(tmp_path)},
                           train={"steps": 1, "weight_decay": 0.25})
    ranks.train(run, expect=1)
    (error,) = ranks.read(run, 0, "error")
    assert "train.weight_decay = 0.25" in error["message"]
    assert "ByHand makes its own" in error["message"]


LATER = """\
import sys
sys.path.insert(0, {folder!r})
from dataclasses import dataclass
from pathlib import Path
import torch
from by_hand_task import ByHand

class Clears(torch.optim.SGD):
    cleared = 0

    def zero_grad(self, set_to_none=True):
        self.cleared += 1
        super().zero_grad(set_to_none)
        Path({told!r}).write_text(str(self.cleared))

class Thaw:
    def __init__(self, optimizer, late):
        self.optimizer, self.late, self.steps = optimizer, late, 0

    def step(self):
        self.steps += 1
        if self.steps == 3:
            self.late.requires_grad_(True)
            self.optimizer.add_param_group({{"params": list(self.late.parameters())}})

    def state_dict(self):
        return {{}}

@dataclass
class Later(ByHand):
    own: bool = False

    def model(self):
        net = super().model()
        self.late = net[0].requires_grad_(False)
        return net

    def optimizer(self, model, lr):
        kind = Clears if self.own else torch.optim.SGD
        return kind(model[2].parameters(), lr=lr)

    def schedule(self, optimizer, total_steps):
        return Thaw(optimizer, self.late)
"""


def write_later(folder: Path) -> str:
    """What `task.use` says for a task whose optimizer gets more parameters while it trains."""
    task = folder / "later.py"
    task.write_text(LATER.format(folder=str(Path(__file__).parent), told=str(folder / "cleared")))
    return f"{task}:Later"


@pytest.mark.parametrize("own", [False, True])
def test_parameters_added_while_training_are_trained_as_by_hand(tmp_path, own):
    """They are clipped together with the others, corrected for counts, and cleared as their
    optimizer does it, also by its own `zero_grad`."""
    clip, counts = 0.1, not own
    folder, told = tmp_path / "run", tmp_path / "cleared"
    folder.mkdir()
    run = ranks.train(ranks.write_plan(
        folder, write_later(tmp_path), size=12,
        params={"record": str(folder), "own": own, "counts": counts},
        train={"steps": 8, "lr": 0.05, "clip": clip}))
    net, (x, y, items) = weights(), examples(120)
    net[0].requires_grad_(False)
    optimizer = torch.optim.SGD(net[2].parameters(), lr=0.05)
    for number, step in enumerate(seen(run, 1, 1)):
        if number == 3:
            net[0].requires_grad_(True)
            optimizer.add_param_group({"params": list(net[0].parameters())})
        optimizer.zero_grad()
        weigh = items[step] if counts else torch.ones(len(step))
        error = (net(x[step]) - y[step]).square().squeeze(1)
        ((error * weigh).sum() / weigh.sum()).backward()
        grads = [p.grad for p in net.parameters() if p.grad is not None]
        length = float(torch.cat([g.flatten() for g in grads]).norm())
        assert length > 1.1 * clip
        for grad in grads:
            grad.mul_(clip / (length + 1e-6))
        optimizer.step()
    assert number == 7
    assert_same_weights(ranks.last(run)["model"], net.state_dict())
    assert (told.read_text() if own else told.exists()) == ("8" if own else False)


def test_ranks_do_not_drift_apart_when_parameters_are_added(tmp_path):
    """DDP averages only the gradients that were required when it was made. That is noticed while
    training goes on, and before anything is saved."""
    run = tmp_path / "run"
    run.mkdir()
    ranks.write_plan(run, write_later(tmp_path), world=2, size=12,
                     train={"steps": 8, "checkpoint_every": 0})
    ranks.train(run, expect=1)
    for rank in range(2):
        (error,) = ranks.read(run, rank, "error")
        assert "0.weight and 1 more required no gradient" in error["message"]
        assert "learning rate of 0" in error["message"]
    assert not checkpoint.listed(run / "checkpoints")


def test_an_optimizer_with_other_groups_than_the_checkpoint_is_refused(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    for attempt, steps in ((1, 4), (2, 6)):
        ranks.write_plan(run, write_later(tmp_path), size=12, train={"steps": steps})
        ranks.train(run, attempt=attempt, expect=attempt - 1)
    (error,) = ranks.read(run, 0, "error")
    assert "does not fit this task's model or optimizer" in error["message"]
    assert "different number of parameter groups" in error["message"]
