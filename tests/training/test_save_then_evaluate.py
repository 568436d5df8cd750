"""What an evaluation does to checkpoints: what is saved before it, and what is the best."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gpu_engine.runs import checkpoints
from gpu_engine.training import checkpoint

from . import judged, ranks

USE = f"{judged.__file__}:Judged"


def run_of(
        path: Path, *, params: dict[str, Any] | None=None, attempt=1, expect=0, world=1,
        size=8, **train: Any) -> Path:
    ranks.write_plan(path, USE, size=size, world=world, train=train,
                     params={"record": str(path / "saw"), **(params or {})})
    return ranks.train(path, attempt=attempt, expect=expect)


def kept(run: Path) -> dict[int, dict[str, float]]:
    """The metrics in each checkpoint's manifest, by step."""
    found = [checkpoint.read_manifest(p) for p in checkpoint.listed(run / "checkpoints")]
    return {m["step"]: m["metrics"] for m in found}


def evaluated(run: Path) -> list[int]:
    return [e["step"] for e in ranks.read(run, 0, "eval")]


@pytest.mark.parametrize(("trouble", "world", "code"), [
    ("oom", 2, 1), ("kill", 1, -9), ("stop", 1, 0)])
def test_the_final_evaluation_costs_no_weights(tmp_path, trouble, world, code):
    """It is interrupted after the weights are saved, and a resume makes it."""
    run, train = tmp_path, {"steps": 5, "checkpoint_every": 0}
    ranks.write_plan(run, USE, size=8, world=world, train=train, params={
        "trouble": trouble, "trouble_at": 1, "held_out": 80})
    with ranks.started(run) as first:
        assert first.wait()[0] == code
    assert list(kept(run)) == [5]
    assert evaluated(run) == []
    assert (ranks.read(run, 0, "end") or [{"outcome": None}])[-1]["outcome"] == {
        1: "failed", -9: None, 0: "stopped"}[code]
    run_of(run, params={"held_out": 80}, attempt=2, world=world, steps=5)
    assert evaluated(run) == [5]
    assert "loss" in kept(run)[5]
    assert ranks.read(run, 0, "step")[-1]["step"] == 5
    assert ranks.read(run, 0, "end")[-1]["outcome"] == "completed"


@pytest.mark.parametrize(("every", "world"), [(0, 2), (5, 1)])
def test_the_best_is_kept_where_a_checkpoint_falls_on_its_step(tmp_path, every, world):
    """5 steps an epoch, a checkpoint each 5 and an evaluation each 5: the second is the best."""
    run = run_of(tmp_path, params={"scores": [3.0, 1.0, 2.0, 4.0, 5.0]}, world=world, epochs=5,
                 checkpoint_every=5, keep=2, best="loss", eval_every=every)
    assert evaluated(run) == [5, 10, 15, 20, 25]
    assert kept(run) == {10: {"loss": 1.0}, 20: {"loss": 4.0}, 25: {"loss": 5.0}}
    best = checkpoints.best_of(run / "checkpoints", "loss", largest=False)
    assert best[0].name == "step-00000010"
    checkpoint.verify(best[0])


def test_an_evaluation_that_is_not_the_best_writes_no_checkpoint(tmp_path):
    run = run_of(tmp_path, params={"scores": [3.0, 1.0, 2.0, 0.5, 4.0]}, epochs=5,
                 checkpoint_every=0, keep=9, best="loss")
    assert sorted(kept(run)) == [5, 10, 20, 25]


@pytest.mark.parametrize(("trouble", "step"), [("kill", 10), ("stop", 10)])
def test_an_evaluation_that_was_cut_off_is_made_up_for(tmp_path, trouble, step):
    """A plateau that steps on each evaluation goes on as in an undisturbed run, to the bit."""
    scores = [3.0, 4.0, 5.0, 6.0]
    # Training waits for the write: killing the process would end a write in its thread.
    train: dict[str, Any] = {"epochs": 4, "checkpoint_every": 5, "checkpoint_async": False}
    whole = run_of(tmp_path / "whole", params={"plateau": True, "scores": scores}, **train)
    broken = tmp_path / "broken"
    at = step // 5
    ranks.write_plan(broken, USE, size=8, train=train, params={
        "plateau": True, "scores": scores, "trouble": trouble, "trouble_at": at,
        "record": str(broken / "saw")})
    with ranks.started(broken) as first:
        assert first.wait() == [-9 if trouble == "kill" else 0]
    run_of(broken, params={"plateau": True, "scores": scores[at - 1:]}, attempt=2, **train)
    lines = [(broken / f"saw-0-{n}").read_text().splitlines() for n in (1, 2)]
    expected = (whole / "saw-0-1").read_text().splitlines()
    assert len(set(expected)) == 3
    assert lines[0] == expected[:step]
    assert lines[1] == expected[step:]
    assert evaluated(broken) == [5, 10, 15, 20]
    ends = [ranks.saved(r / "checkpoints" / "step-00000020")["values"]
            for r in (whole, broken)]
    assert ends[0] == ends[1]


def test_a_best_checkpoint_was_evaluated_already(tmp_path):
    """It is written after its evaluation, so ReduceLROnPlateau must not step on that once more."""
    train: dict[str, Any] = {"epochs": 4, "checkpoint_every": 0, "best": "loss",
                             "checkpoint_async": False}
    ranks.write_plan(tmp_path, USE, size=8, train=train, params={
        "plateau": True, "scores": [3.0, 2.0], "trouble": "kill", "trouble_at": 3})
    ranks.train(tmp_path, expect=-9)
    assert list(kept(tmp_path)) == [5, 10]
    run_of(tmp_path, attempt=2, **train | {"epochs": 2})  # nothing is left to do
    assert evaluated(tmp_path) == [5, 10]
    run_of(tmp_path, params={"plateau": True, "scores": [5.0, 6.0]}, attempt=3, **train)
    assert evaluated(tmp_path) == [5, 10, 15, 20]
    lines = (tmp_path / "saw-0-3").read_text().splitlines()
    assert [len(lines), len(set(lines[:5])), len(set(lines))] == [10, 1, 2]


def test_all_ranks_evaluate_with_the_buffers_of_the_checkpoint(tmp_path):
    """Each rank's BatchNorm has averages of its own batches; those of rank 0 count."""
    run = run_of(tmp_path, params={"norm": True, "held_out": 20, "eval_batch": 5}, world=2,
                 steps=8, eval_every=4, checkpoint_every=4)
    saved = []
    for step, evaluation in zip((4, 8), ranks.read(run, 0, "eval"), strict=True):
        state = ranks.saved(run / "checkpoints" / checkpoint.name_of(step))["model"]
        task = judged.Judged(norm=True, held_out=20)
        model = task.model()
        model.load_state_dict(state)
        model.eval()
        x, y = task.eval_data().tensors
        with torch.no_grad():
            loss = (model(x) - y).square().mean().item()
        assert evaluation["loss"] == pytest.approx(loss, rel=1e-12)
        saved.append(f"norm {state['0.running_mean'].tolist()!r} {6 * step}")
    lines = [[line for line in (run / f"saw-{rank}-1").read_text().splitlines()
              if line.startswith("norm")] for rank in (0, 1)]
    assert saved[0] != saved[1]
    # Four chunks of `eval_batch` examples: each rank has two of them.
    assert lines[0] == lines[1] == [saved[0], saved[0], saved[1], saved[1]]


def test_an_evaluation_that_fails_on_one_rank_ends_the_run_on_all(tmp_path):
    """A checkpoint that is due at its step was written before it."""
    params = {"trouble": "oom", "trouble_at": 1, "rank": 1, "held_out": 40}
    ranks.write_plan(tmp_path, USE, size=8, world=2, params=params,
                     train={"steps": 9, "eval_every": 4, "checkpoint_every": 4})
    ranks.train(tmp_path, expect=1)
    assert ranks.read(tmp_path, 1, "error")[-1]["type"] == "OutOfMemoryError"
    assert ranks.read(tmp_path, 0, "error")[-1]["type"] == "PeerLost"
    assert kept(tmp_path) == {4: {}}
