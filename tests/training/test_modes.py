"""The same global batch and seed train the same model in every mode."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gpu_engine.training import checkpoint

from . import ranks
from .conftest import recorded


def step_losses(run: Path, world: int, accumulate: int) -> list[float]:
    """The loss of each step: the mean over ranks and backward passes."""
    each = [[loss for loss, _ in recorded(run, r)] for r in range(world)]
    steps = len(each[0]) // accumulate
    return [sum(each[r][s * accumulate + a] for r in range(world) for a in range(accumulate))
            / (world * accumulate) for s in range(steps)]


def step_examples(run: Path, world: int, accumulate: int) -> list[list[int]]:
    each = [[numbers for _, numbers in recorded(run, r)] for r in range(world)]
    steps = len(each[0]) // accumulate
    return [sorted(n for r in range(world) for a in range(accumulate)
                   for n in each[r][s * accumulate + a]) for s in range(steps)]


@pytest.mark.parametrize("accumulate", [1, 4])
def test_single_and_ddp_agree(make, accumulate: int) -> None:
    runs = {w: ranks.train(make(f"w{w}", size=24, world=w, accumulate=accumulate,
                                train={"epochs": 2, "clip": 0.5}))
            for w in (1, 2, 3)}
    alone = step_losses(runs[1], 1, accumulate)
    assert len(alone) == 20
    weights = final_weights(runs[1])
    for world in (2, 3):
        assert step_examples(runs[world], world, accumulate) == step_examples(
            runs[1], 1, accumulate)
        assert step_losses(runs[world], world, accumulate) == pytest.approx(alone, rel=1e-12)
        for name, value in final_weights(runs[world]).items():
            torch.testing.assert_close(value, weights[name], rtol=1e-10, atol=1e-12)


def test_reported_losses_are_the_steps_own(make) -> None:
    run = ranks.train(make(size=24, world=2, accumulate=2, params={"pause": 0.005}))
    for rank in range(2):
        told = [x for e in ranks.read(run, rank, "step") for x in e["losses"]]
        seen = [loss for loss, _ in recorded(run, rank)]
        means = [(a + b) / 2 for a, b in zip(seen[::2], seen[1::2], strict=True)]
        assert told == pytest.approx(means, rel=1e-8)


def test_gradients_are_the_average_of_the_ranks_own(make, tmp_path: Path) -> None:
    """SGD with rate 1 moves each weight by exactly its averaged gradient."""
    task = tmp_path / "sgd.py"
    task.write_text(
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import torch\nfrom dataclasses import dataclass\nfrom toy import Toy\n\n"
        "@dataclass\nclass Sgd(Toy):\n"
        "    def optimizer(self, model, lr):\n"
        "        return torch.optim.SGD(model.parameters(), lr=lr)\n")
    run = ranks.write_plan(tmp_path / "sgd", f"{task}:Sgd", world=3, size=24,
                           params={"record": str(tmp_path)}, train={"steps": 1, "lr": 1.0})
    ranks.train(run)
    from gpu_engine.training.params import build, load
    from gpu_engine.training.rng import seed_model

    toy = build(load(f"{task}:Sgd"), {})
    seed_model(0)
    model = toy.model()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    data = toy.train_data()
    own = []
    for rank in range(3):
        line = (tmp_path / f"{rank}-1.txt").read_text().split()[1]
        numbers = [int(n) for n in line.split(",")]
        model.zero_grad()
        (model(data.x[numbers]) - data.y[numbers]).square().mean().backward()
        own.append({n: p.grad.clone() for n, p in model.named_parameters()})
    after = final_weights(run)
    for name, value in before.items():
        mean = sum(o[name] for o in own) / 3
        torch.testing.assert_close(value - after[name], mean, rtol=1e-12, atol=1e-14)


def test_saved_under_each_mode_loads_under_each_other(make) -> None:
    """DataParallel is one process: here it runs on the CPU, in tests/gpu on GPUs."""
    shapes = {"single": {"world": 1}, "ddp": {"world": 2}, "dp": {"world": 1, "mode": "dp"}}
    for name, shape in shapes.items():
        first = make(f"from-{name}", size=24, train={"steps": 6}, **shape)
        ranks.train(first)
        names = set(final_weights(first))
        assert names == {"0.weight", "0.bias", "3.weight", "3.bias"}
        for other, there in shapes.items():
            if other == name:
                continue
            # The same run folder with a new plan in another mode.
            make(f"from-{name}", size=24, train={"steps": 8}, **there)
            state = final_state(first)
            ranks.train(first, attempt=2)
            assert ranks.read(first, 0, "schedule")[-1]["first_step"] == state["step"] == 6
            assert final_state(first)["step"] == 8
            for path in checkpoint.listed(first / "checkpoints")[1:]:
                checkpoint._remove(path)


def test_world_of_one_under_ddp(make) -> None:
    run = ranks.train(make(size=24, world=1, mode="ddp", train={"steps": 3}))
    assert len(recorded(run)) == 3


def final_state(run: Path) -> dict:
    return checkpoint.load(checkpoint.listed(run / "checkpoints")[-1])


def final_weights(run: Path) -> dict[str, torch.Tensor]:
    return final_state(run)["model"]
