"""A day at the command line: the ways of README and docs/headless.md one after another, each with
what its user reads from it. None of this may change when the insides do."""

from __future__ import annotations

import json

import pytest

from gpu_engine.runs import folder as runs

from ..conftest import wait_for
from .kit import call, losses, sets

SCRIPT = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    loss = model(torch.ones(2, 4)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(f"loss\\t{loss.item():.4f}", flush=True)
"""


def ok(*args: str, **more) -> str:
    """What a command that must succeed has printed."""
    done = call(*args, **more)
    assert done.returncode == 0, (args, done.stdout, done.stderr)
    return done.stdout


@pytest.mark.timeout(300)
def test_a_day(home, tmp_path):
    devices = json.loads(ok("devices", "--json"))["devices"]
    assert [d["id"] for d in devices][:1] == ["cpu:0"]
    tiny = sets()
    plan = json.loads(ok("plan", "ddp", "--devices", "cpu:0,cpu:1", *tiny, "--json"))
    assert (plan["world_size"], plan["batch"]["per_gpu"]) == (2, 8)
    refused = call("plan", "ddp", "--devices", "cpu:0,cpu:1", "--set", "batch.size=7")
    assert refused.returncode == 2
    assert "batch.size" in refused.stderr

    ok("run", "ddp", "--devices", "cpu:0,cpu:1", *tiny)
    two = runs.find("last")
    ok("note", two.id, "kept", "--tag", "day")
    assert [len(losses(two, rank)) for rank in (0, 1)] == [12, 12]
    (tmp_path / "mine.py").write_text(SCRIPT)
    done = call("run", "--devices", "cpu:0", "--", "python", "mine.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    script = runs.find("last")
    printed = [float(line.split()[-1]) for line in ok("logs", "last").splitlines()
               if "loss " in line]
    assert losses(script) == pytest.approx(printed, abs=1e-4)
    assert len(printed) == 8
    assert "completed" in ok("show", "last")

    long = runs.find(json.loads(ok("run", "single", "--detach", "--json", *sets(
        devices__ids="cpu:0", train__steps=100_000)))["id"])
    wait_for(lambda: len(losses(long)) > 3)
    ok("stop", long.id)
    assert long.state().state == "stopped"
    steps = len(losses(long))
    ok("resume", long.id, "--set", f"train.steps={steps + 3}")
    assert len(losses(long)) == steps + 3

    queued = runs.find(ok("run", "single", "--queue", "--after", two.id, *tiny,
                          "--devices", "cpu:0").strip())
    wait_for(lambda: queued.state().state == "completed")
    ok("run", "single", "--devices", "cpu:0", *tiny, "--grid", "train.lr=1e-2,3e-3")
    wait_for(lambda: len(runs.all_runs()) == 6
             and not any(run.state().live for run in runs.all_runs()))

    (listed,) = json.loads(ok("runs", "--json", "--filter", "tag:day"))
    assert (listed["id"], listed["state"]) == (two.id, "completed")
    assert "parallel.mode" in ok("compare", two.id, long.id, "--markdown")
    ok("export", two.id, str(tmp_path / "w.pt"))
    assert (tmp_path / "w.pt").stat().st_size > 10_000
    ok("export", two.id, "--to", "csv", "-o", str(tmp_path / "two.csv"))
    assert len((tmp_path / "two.csv").read_text().splitlines()) > 12
    ok("report", two.id, "-o", str(tmp_path / "report.html"))
    assert two.id in (tmp_path / "report.html").read_text()
    ok("runs", "rm", script.id, "--yes")
    assert len(runs.all_runs()) == 5
