"""What a rank takes from its plan: its number of examples and the scaled learning rate."""

from __future__ import annotations

import json
from pathlib import Path

from . import ranks
from .conftest import recorded


def test_dp_reads_all_replicas_shares_and_the_rate_is_the_scaled_one(make) -> None:
    """Planned for two replicas at twice the rate. A global batch of 24, in two passes: 12 each."""
    run = make("run", {"pause": 0.002}, mode="dp", size=24, accumulate=2,
               train={"steps": 4, "lr": 0.01})
    plan = json.loads((run / "plan.json").read_text())
    plan["replicas"] = plan["batch"]["replicas"] = 2
    plan["batch"]["per_gpu"] = 6
    plan["lr"] |= {"rule": "linear", "reference_batch": 12, "factor": 2.0, "scaled": 0.02}
    (run / "plan.json").write_text(json.dumps(plan))
    ranks.train(run)
    seen = [numbers for _, numbers in recorded(run)]
    assert [len(numbers) for numbers in seen] == [12] * 8
    assert len({n for numbers in seen for n in numbers}) == 96
    assert {e["lr"] for e in ranks.read(run, 0, "step")} == {0.02}
    (schedule,) = ranks.read(run, 0, "schedule")
    assert (schedule["batch"], schedule["steps_per_epoch"]) == (24, 10)


def test_the_rate_counts_the_examples_of_all_passes_of_a_step(make, tmp_path: Path) -> None:
    task = tmp_path / "counting.py"
    task.write_text(f"""
import sys
from dataclasses import dataclass
sys.path.append({str(Path(__file__).parent)!r})
from gpu_engine.worker.rank.recorder import Recorder
from toy import Toy

def step(self, step, epoch, loss, lr, examples, wait):
    print("examples", examples)
    own(self, step, epoch, loss, lr, examples, wait)

own, Recorder.step = Recorder.step, step

@dataclass
class Counting(Toy):
    pass
""")
    run = ranks.write_plan(tmp_path / "run", f"{task}:Counting", world=2, size=24, accumulate=3,
                           train={"steps": 2})
    ranks.train(run)
    assert ranks.logs(run).count("examples 12\n") == 4  # 24 over two ranks, in two steps
