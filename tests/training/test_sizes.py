"""What a rank takes from its plan: its number of examples and the scaled learning rate."""

import json

from . import ranks
from .conftest import own_task, recorded


def test_dp_reads_all_replicas_shares_and_the_rate_is_the_scaled_one(make):
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


def test_the_rate_counts_the_examples_of_all_passes_of_a_step(tmp_path):
    run = ranks.train(own_task(tmp_path / "run", """\
def __post_init__(self):
    from gpu_engine.worker.rank.recorder import Recorder
    super().__post_init__()
    own = Recorder.step
    def step(self, step, epoch, loss, lr, examples, wait):
        print("examples", examples)
        own(self, step, epoch, loss, lr, examples, wait)
    Recorder.step = step
""", world=2, size=24, accumulate=3, train={"steps": 2}))
    assert ranks.logs(run).count("examples 12\n") == 4  # 24 over two ranks, in two steps
