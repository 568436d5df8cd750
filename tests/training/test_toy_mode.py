"""Adds a mode with nothing but a record and a strategy, both in this file. The mode is planned and
trains on two CPU ranks, with the same numbers as a loop in plain torch.

The file is also a program: `--plan RUN` plans a run, `--run RUN` is one of its ranks.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from gpu_engine import Task
from gpu_engine.spec import modes
from gpu_engine.training.strategies import Strategy

TOY = modes.Mode(
    name="averaged", label="averaged by hand", short="averaged", help="a toy",
    strategy="test_toy_mode:Averaged", process_a_device=True, replica_a_device=True,
    keys=frozenset({"master_port", "backend", "timeout"}))
RATE, MOMENTUM, CLIP, STEPS = 0.2, 0.9, 0.4, 6


class Averaged(Strategy):
    """Averages each gradient over the ranks as soon as it is complete, without DDP. Notes which of
    its methods are called."""

    local = False

    def wrap(self, task: Task) -> nn.Module:
        self.seen: set[str] = set()
        for value in self.raw.parameters():
            value.register_post_accumulate_grad_hook(self.average)
        return self.raw

    def average(self, value: nn.Parameter) -> None:
        if not self.local:
            dist.all_reduce(value.grad)
            value.grad /= self.job.who.world_size

    @contextlib.contextmanager
    def local_gradients(self):
        self.note("local")
        self.local = True
        yield
        self.local = False

    def clip(self, parameters, limit):
        self.note("clip")
        norm = torch.stack([p.grad.square().sum() for p in parameters]).sum().sqrt()
        for value in parameters:
            value.grad *= min(1.0, limit / (norm.item() + 1e-6))  # as PyTorch does
        return norm

    def full_state(self, optimizer):
        self.note("full_state")
        return super().full_state(optimizer)

    def for_evaluation(self):
        self.note("for_evaluation")
        return super().for_evaluation()

    def note(self, what: str) -> None:
        self.seen.add(what)
        (self.job.run / f"seen-{self.job.who.rank}.json").write_text(json.dumps(sorted(self.seen)))


def start() -> nn.Module:
    """The model before it is trained, float64."""
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    with torch.no_grad():
        for number, value in enumerate(net.parameters()):
            value.copy_(torch.linspace(-1, 1, value.numel()).reshape(value.shape) / (number + 1))
    return net


def examples() -> tuple[torch.Tensor, torch.Tensor]:
    """x (16, 3) and y (16, 1), all used in each step, so that their order does not matter."""
    x = torch.arange(48, dtype=torch.float64).reshape(16, 3).sin()
    return x, x.prod(1, keepdim=True).cos() * 3


@dataclass
class Line(Task):
    """All examples in each step, in parts of 4: two ranks, two backward passes."""

    def model(self):
        return start()

    def train_data(self):
        return TensorDataset(*examples())

    def eval_data(self):
        return TensorDataset(*examples())

    def optimizer(self, model, lr):
        return torch.optim.SGD(model.parameters(), lr=lr, momentum=MOMENTUM)

    def loss(self, model, batch):
        return (model(batch[0]) - batch[1]).square().mean()


def by_hand() -> tuple[list[float], dict[str, torch.Tensor], float]:
    """Losses, final weights and final error of the same training in plain torch, in one piece."""
    net, (x, y), losses = start(), examples(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=MOMENTUM)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = (net(x) - y).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), CLIP)
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        return losses, net.state_dict(), (net(x) - y).square().mean().item()


def test_a_mode_is_a_record_and_a_strategy(tmp_path: Path) -> None:
    from gpu_engine.training import checkpoint

    from . import ranks

    run, env = tmp_path / "run", dict(os.environ, OMP_NUM_THREADS="1")
    (run / "ranks").mkdir(parents=True)
    log, program = run / "plan.log", Path(__file__)
    planner = ranks.zygote().start(["--plan", str(run)], env, log, program)
    assert planner.wait() == 0, log.read_text()
    plan = json.loads((run / "plan.json").read_text())
    assert [p["env"]["RANK"] for p in plan["processes"]] == ["0", "1"]
    assert "--set parallel.mode=averaged" in plan["lines"][0]
    port, started = str(ranks.free_port()), []
    for rank, process in enumerate(plan["processes"]):
        started.append(ranks.zygote().start(
            ["--run", str(run)], env | process["env"] | {"MASTER_PORT": port},
            run / "ranks" / f"{rank:05d}.log", program))
    try:
        codes = [process.wait() for process in started]
    finally:
        for process in started:
            process.kill()
    assert codes == [0, 0], ranks.logs(run)

    losses, weights, error = by_hand()
    told = [[x for e in ranks.read(run, r, "step") for x in e["losses"]] for r in (0, 1)]
    means = [sum(both) / 2 for both in zip(*told, strict=True)]
    torch.testing.assert_close(torch.tensor(means), torch.tensor(losses), rtol=1e-6, atol=0)
    saved = ranks.saved(checkpoint.newest(run / "checkpoints", print))["model"]
    assert saved.keys() == weights.keys()
    for name, value in weights.items():
        torch.testing.assert_close(saved[name], value, rtol=1e-10, atol=1e-12)
    last = ranks.read(run, 0, "eval")[-1]
    assert abs(last["loss"] / error - 1) < 1e-9
    for rank in (0, 1):
        assert json.loads((run / f"seen-{rank}.json").read_text()) == [
            "clip", "for_evaluation", "full_state", "local"]


def make_plan(run: Path) -> None:
    """Plan the toy run on two CPU slots and write its plan.json."""
    from gpu_engine.devices.records import Device, Inventory
    from gpu_engine.plan.build import plan
    from gpu_engine.spec.read import from_dict

    slots = Inventory(tuple(Device(f"cpu:{i}", "cpu", f"CPU {i}", i) for i in (0, 1)), "cpu")
    spec = from_dict({
        "task": {"use": f"{__file__}:Line"}, "devices": {"ids": ["cpu:0", "cpu:1"]},
        "parallel": {"mode": "averaged", "timeout": 60.0}, "batch": {"size": 16, "accumulate": 2},
        "train": {"steps": STEPS, "lr": RATE, "clip": CLIP, "workers": 0}})
    made = plan(spec, slots, python=sys.executable)
    (run / "plan.json").write_text(json.dumps(made.to_dict()))


if __name__ == "__main__":
    modes.register(TOY)
    if sys.argv[1] == "--plan":
        make_plan(Path(sys.argv[2]))
    else:
        from gpu_engine.worker.rank.process import exit_process
        from gpu_engine.worker.start import main

        exit_process(main(sys.argv[1:], os.environ))
