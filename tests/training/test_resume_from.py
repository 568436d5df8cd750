"""An attempt that goes on from a checkpoint which a person has chosen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_engine.training import checkpoint

from . import ranks
from .conftest import recorded
from .test_checkpoint import flip

TRAIN = {"steps": 12, "checkpoint_every": 3, "keep": 9}


def told(run: Path, step: int, attempt: int):
    plan = json.loads((run / "plan.json").read_text())
    plan["resume_from"] = {"checkpoint": checkpoint.name_of(step), "attempt": attempt}
    (run / "plan.json").write_text(json.dumps(plan))


def steps(folder: Path) -> list[int]:
    return [int(p.name.removeprefix("step-")) for p in checkpoint.listed(folder)]


@pytest.mark.parametrize("world", [1, 2])
def test_it_goes_on_from_there_and_later_checkpoints_are_set_aside(make, world):
    """The attempt starts from step 6 of 12 and is killed after its own step 9; the restart goes on
    from that checkpoint of step 9."""
    run = ranks.train(make("run", {"dropout": 0.2}, world=world, size=24, train=TRAIN))
    assert steps(run / "checkpoints") == [3, 6, 9, 12]
    told(run, 6, attempt=2)
    before = checkpoint.read_manifest(run / "checkpoints" / "step-00000009")["time"]
    ranks.train(run, attempt=2)
    for rank in range(world):
        assert recorded(run, rank, 2) == recorded(run, rank)[6:]
    assert ranks.read(run, 0, "schedule")[-1]["first_step"] == 6
    aside = run / "checkpoints" / "before-attempt-2"
    assert steps(aside) == [9, 12]
    assert checkpoint.read_manifest(aside / "step-00000009")["time"] == before
    assert checkpoint.read_manifest(run / "checkpoints" / "step-00000009")["time"] > before
    assert "step-00000009, step-00000012" in ranks.read(run, 0, "warning")[-1]["message"]
    flip(run / "checkpoints" / "step-00000012" / "state.pt")
    ranks.train(run, attempt=3)  # the same plan.json, as in a restart
    assert ranks.read(run, 0, "schedule")[-1]["first_step"] == 9
    assert steps(run / "checkpoints") == [3, 6, 9, 12]
    assert not (run / "checkpoints" / "before-attempt-3").exists()


def test_a_damaged_or_missing_checkpoint_is_an_error_and_changes_nothing(make):
    run = ranks.train(make("run", size=24, train=TRAIN))
    flip(run / "checkpoints" / "step-00000006" / "state.pt")
    for attempt, step, said in (
            (2, 6, ("step-00000006", "content has changed since it was written", "choose another")),
            (3, 7, ("step-00000007",))):
        told(run, step, attempt)
        ranks.train(run, attempt=attempt, expect=1)
        message = ranks.read(run, 0, "error")[-1]["message"]
        assert all(words in message for words in said), message
        assert steps(run / "checkpoints") == [3, 6, 9, 12]
