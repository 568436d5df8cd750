"""gpu-engine compare-modes, with real runs."""

from __future__ import annotations

import json
from pathlib import Path

from gpu_engine.runs import folder

from ..command_line import called

DIGITS = ("--set", "task.use=gpu_engine.tasks.digits:Digits", "--set", "batch.size=32",
          "--set", "train.workers=0", "--devices", "cpu:0,cpu:1", "--mode", "ddp")


def test_one_device_and_two_train_the_same(home: Path) -> None:
    out = called("compare-modes", *DIGITS, "--steps", "12", "--json")
    assert out.returncode == 0, out.stderr + out.stdout
    said = json.loads(out.stdout)
    assert (said["global_batch"], said["steps"], said["same"]) == (32, 12, True)
    one, *others = said["modes"]
    assert [(m["mode"], m["devices"]) for m in (one, others[0])] == [("single", 1), ("ddp", 2)]
    assert len(one["losses"]) == 12
    for other in others:
        assert other["losses"].keys() == one["losses"].keys()
        for step, loss in one["losses"].items():
            assert abs(other["losses"][step] - loss) <= 1e-4 * loss
        assert 0 < other["apart"] < 1e-4 or other["losses"] == one["losses"]
    assert said["left_out"] == {"dp": "DataParallel needs GPUs"}
    assert folder.all_runs() == []  # deleted, as nobody asked to keep them


def test_a_mode_that_fails_is_named_and_its_run_kept(home: Path, tmp_path: Path) -> None:
    """A task that can't be trained under DDP: one rank raises."""
    (tmp_path / "task.py").write_text(
        "import os\n"
        "from gpu_engine.tasks.digits import Digits\n"
        "class Alone(Digits):\n"
        "    def model(self):\n"
        "        if os.environ.get('WORLD_SIZE') == '2':\n"
        "            raise RuntimeError('two are too many')\n"
        "        return super().model()\n")
    out = called("compare-modes", "--set", f"task.use={tmp_path / 'task.py'}:Alone",
                 *DIGITS[2:], "--steps", "5", "--keep")
    assert out.returncode == 1, out.stdout
    failed = [run for run in folder.all_runs() if run.state().state == "failed"]
    assert [run for run in failed if f"ddp failed: run {run.id}: " in out.stdout]
    assert "two are too many" in out.stdout
    assert [run.state().state for run in folder.all_runs()].count("completed") == 1


def test_mistakes(home: Path) -> None:
    out = called("compare-modes", *DIGITS[:-4], "--devices", "cpu:0")
    assert out.returncode == 2
    assert "name two devices or more" in out.stderr
