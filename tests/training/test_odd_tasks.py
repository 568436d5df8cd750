"""Tasks that do what others have done to this engine: none of it may cost the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_engine.training import checkpoint

from . import ranks


def plan(run: Path, body: str, *, params: dict[str, Any] | None = None, **options: Any) -> Path:
    """A run of the toy task with `body` as further lines of its class."""
    task = run.with_name(f"{run.name}_task.py")
    task.write_text(
        "import csv, multiprocessing, os, signal, sys, time\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from dataclasses import dataclass\nimport torch\nfrom torch import nn\n"
        "from toy import ATTEMPT, RANK, Toy\n\n"
        "@dataclass\nclass Odd(Toy):\n"
        + "".join(f"    {line}\n" for line in body.splitlines()))
    return ranks.write_plan(run, f"{task}:Odd", params=params, **options)


def names(run: Path) -> list[str]:
    return [path.name for path in checkpoint.listed(run / "checkpoints")]


@pytest.mark.parametrize(("made", "rates"), [
    # The tensor is changed in place by its schedule: 0.5, 0.25, 0.166…
    ("torch.optim.Adam(model.parameters(), lr=torch.tensor(0.5))", [0.5, 0.25, 0.5 / 3]),
    ("torch.optim.SGD(model.parameters(), lr=numpy.float32(0.5))", [0.5] * 3),
    ("Relative(model.parameters(), {'lr': None})", [None] * 3),
    ("Relative(model.parameters(), {})", [None] * 3),
])
def test_a_learning_rate_of_any_kind_is_recorded_and_saved(
        tmp_path: Path, made: str, rates: list[float | None]) -> None:
    body = f"""\
def optimizer(self, model, lr):
    import numpy
    class Relative(torch.optim.Optimizer):
        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    p.data -= 0.01 * p.grad
    return {made}
def schedule(self, optimizer, total_steps):
    if isinstance(optimizer.param_groups[0].get("lr"), torch.Tensor):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1 / (1 + s))
"""
    run = ranks.train(plan(tmp_path / "run", body, params={"double": False}, size=24,
                           train={"steps": 3, "checkpoint_every": 1}))
    steps = ranks.read(run, 0, "step")
    assert [e["step"] for e in steps] == [1, 2, 3]
    assert [e["lr"] for e in steps] == [r if r is None else pytest.approx(r) for r in rates]
    assert names(run) == ["step-00000001", "step-00000002", "step-00000003"]
