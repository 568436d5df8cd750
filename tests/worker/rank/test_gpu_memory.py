"""Who holds the memory of a GPU that has none left."""

from __future__ import annotations

import pytest
import torch
from click.testing import CliRunner

from gpu_engine.cli import cli
from gpu_engine.runs import folder as runs
from gpu_engine.worker.rank import memory

from ...observe.kit import PYTHON, SCRIPTS

ONE = ("--mode", "single", "--devices", "cpu:0")


NET = {"filename": "/home/me/net.py", "line": 12, "name": "forward"}
LINEAR = {"filename": torch.nn.modules.linear.__file__, "line": 125, "name": "forward"}


def test_lines_are_named_by_what_they_hold():
    """In the form of torch.cuda.memory._snapshot's docstring."""
    def block(size: int, *frames: dict, state: str = "active_allocated") -> dict:
        return {"size": size, "state": state, "frames": list(frames)}

    free, pending = "inactive", "active_pending_free"  # nothing else can have the second either
    assert memory.holders({"segments": [
        {"blocks": [block(64), block(900, NET, state=free), block(100, LINEAR)]},
        {"blocks": [block(500, LINEAR, NET), block(200, NET, state=pending)]}]}) == [
        ("home/me/net.py:12 in forward", 700), ("linear.py:125 in forward", 100)]


def test_recording_begins_with_the_first_use_of_a_gpu_and_not_before(monkeypatch):
    asked, later = [], []
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history",
                        lambda **options: asked.append(options))
    monkeypatch.setattr(torch.cuda, "_lazy_call", later.append)
    monkeypatch.setattr(memory, "_from_start", False)
    memory.record_from_start()
    assert asked == []
    later[0]()
    assert len(asked) == 1


@pytest.mark.parametrize("asked", [True, False])
def test_a_run_that_is_out_of_memory_names_the_lines_that_held_most(home, asked):
    done = CliRunner().invoke(cli, [
        "run", *ONE, "--set", f"run.oom_snapshot={str(asked).lower()}", "--",
        PYTHON, str(SCRIPTS / "memory.py"), "oom"])
    assert done.exit_code == 1, done.output
    run = runs.find("last")
    cause = run.state().cause
    assert cause.message.startswith("out of GPU memory: requested 6.0 GiB")
    line = "held most: 8.0 GiB by "
    assert (line in cause.line) == asked
    assert ("memory.py:19 in hold_much" in cause.line) == asked
    traces = run.path / "traces"
    assert sorted(p.suffix for p in traces.glob("*")) == [".pickle"] * asked


def test_a_task_does_so_too(home, tmp_path):
    (tmp_path / "full.py").write_text("""
import torch
from gpu_engine.tasks.digits import Digits

class Full(Digits):
    def loss(self, model, batch):
        frames = [{"filename": __file__, "line": 8, "name": "loss"}]
        torch.cuda.memory._snapshot = lambda: {"segments": [{"blocks": [
            {"size": 1 << 30, "state": "active_allocated", "frames": frames}]}]}
        raise torch.OutOfMemoryError("CUDA out of memory")
""")
    done = CliRunner().invoke(cli, [
        "run", *ONE, "--set", f"task.use={tmp_path}/full.py:Full", "--set", "train.steps=3",
        "--set", "train.workers=0", "--set", "run.oom_snapshot=true"])
    assert done.exit_code == 1, done.output
    cause = runs.find("last").state().cause
    assert "held most: 1.0 GiB by " in cause.line
    assert "full.py:8 in loss; " in cause.line  # and what would fit
