"""A loss that is not a number, from the failure to the run that goes on without the examples."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from gpu_engine.runs import folder
from gpu_engine.training.data import permutation

from ..command_line import called
from ..training import poison_task
from .kit import events

STEPS, LR = 6, 0.2  # one epoch of batches of four


def by_hand(batches):
    """The mean loss of each batch, of a loop that is written by hand."""
    x, y = poison_task.data()
    net = poison_task.model()
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    out = []
    for batch in batches:
        loss = (net(x[batch]) - y[batch]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        out.append(loss.item())
    return out


def test_a_run_goes_on_without_the_examples_of_a_bad_step(home):
    task = f"{Path(poison_task.__file__)}:Poison"
    failed = called("run", "ddp", "--devices", "cpu:0,cpu:1", "--set", f"task.use={task}",
                    "--set", "batch.size=4", "--set", f"train.steps={STEPS}",
                    "--set", f"train.lr={LR}", "--set", "train.lr_scale=none",
                    "--set", "train.clip=0", "--set", "train.checkpoint_every=1",
                    "--set", "train.checkpoint_async=false", "--set", "train.workers=0")
    assert failed.returncode == 1
    run = folder.find("last")
    said = " ".join(e["message"] for rank in (0, 1) for e in events(run, rank)
                    if e["kind"] == "error")
    bad = int(re.search(r"resume RUN --set train.skip_steps=(\d+) goes on without", said)[1])
    order = permutation(0, 0, poison_task.EXAMPLES).tolist()
    assert poison_task.BAD in order[4 * (bad - 1):4 * bad]

    again = called("resume", run.id, "--set", f"train.skip_steps={bad}")
    assert again.returncode == 0, again.stderr
    seen = {step: order[4 * (step - 1):4 * step] for step in range(1, STEPS + 1) if step != bad}
    wanted = by_hand(seen.values())
    last = {rank: {} for rank in (0, 1)}
    for rank, of in last.items():
        for e in events(run, rank):
            if e["kind"] == "step":
                of.update(zip(range(e["step"] - e["n"] + 1, e["step"] + 1),
                              e.get("losses", [None] * e["n"]), strict=True))
    assert last[0][bad] is last[1][bad] is None
    assert [(last[0][s] + last[1][s]) / 2 for s in seen] == pytest.approx(wanted, rel=1e-5)
    assert run.state().state == "completed"
