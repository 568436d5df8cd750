"""What the saver decides: what is on the disk, what is the best, what is kept."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpu_engine.common.errors import UserError
from gpu_engine.spec.read import from_dict
from gpu_engine.training import checkpoint
from gpu_engine.training.saving import Saver
from gpu_engine.worker.rank.group import Group
from gpu_engine.worker.rank.job import Identity
from gpu_engine.worker.rank.recorder import Recorder


@pytest.fixture
def made(tmp_path):
    def make(weights: list[tuple[str, torch.Tensor]] | None = None, **train: Any) -> Saver:
        (tmp_path / "ranks").mkdir()
        (tmp_path / "ranks" / "00000.jsonl").touch()
        job: Any = SimpleNamespace(
            run=tmp_path, spec=from_dict({"train": train}), devices=["cpu"], who=Identity(),
            attempt=1, plan=SimpleNamespace(mode="single"), batch=SimpleNamespace(global_size=8))
        saver: Saver
        state = {"step": 0, "model": {"w": torch.ones(3)}}
        saver = Saver(job, Group(Identity()), Recorder(tmp_path / "ranks" / "00000.jsonl"),
                      iter(weights or []), lambda: state)
        save = saver.save

        def at(step: int, *metrics: Any, **how: Any):
            state["step"] = step
            save(step, *(metrics or ({},)), **how)

        saver.save = at  # the state is that of the step
        return saver
    return make


def steps(saver: Saver) -> list[int]:
    return [int(path.name[5:]) for path in checkpoint.listed(saver.folder)]


def test_a_checkpoint_that_was_not_written_is_written_at_the_end(made, monkeypatch):
    saver, write = made(checkpoint_async=True), checkpoint.save

    def full(*about: Any):
        raise checkpoint.NotWritten("the disk is full")

    monkeypatch.setattr(checkpoint, "save", full)
    saver.save(5)
    saver.finish()
    assert (steps(saver), saver.step) == ([], None)
    with pytest.raises(UserError, match="the disk is full"):
        saver.save(5, final=True)
    monkeypatch.setattr(checkpoint, "save", write)
    saver.save(5, final=True)
    assert (steps(saver), saver.step) == ([5], 5)


@pytest.mark.parametrize(("best", "better", "worse"), [("max:score", 0.6, 0.4),
                                                       ("min:score", 0.4, 0.6)])
def test_only_what_is_better_is_the_best(made, best, better, worse):
    saver = made(best=best)
    assert not saver.record_evaluation(1, {"score": float("nan")})
    assert not any(saver.record_evaluation(1, {"other": 1.0}) for _ in range(2))
    told = (saver.folder.parent / "ranks" / "00000.jsonl").read_text()
    assert told.count("the evaluation gives no 'score'") == 1
    saver.save(1, {"score": float("nan")})
    assert saver.record_evaluation(2, {"score": 0.5}), "a value that is no number stays the best"
    saver.save(2, {"score": 0.5})
    saver.finish()
    for score, is_best in ((0.5, False), (worse, False), (better, True), (float("nan"), False)):
        assert saver.record_evaluation(3, {"score": score}) == is_best


def test_no_weight_that_is_not_finite_is_saved_at_any_time(made):
    last = torch.ones(2)
    saver = made([("first", torch.ones(2)), ("last", last)], on_nonfinite="continue")
    saver.save(1)
    last[1] = float("nan")
    saver.save(2)
    saver.finish()
    assert steps(saver) == [1]


@pytest.mark.parametrize("under_way", [True, False])
def test_an_old_best_goes_with_the_evaluation_that_beats_it(made, under_way):
    """The run may end after that: the next save, which would delete it, never comes."""
    saver = made(best="max:score", keep=2, checkpoint_async=under_way)
    saver.save(5, {"score": 0.5})
    saver.save(10)
    saver.save(15)
    if not under_way:
        saver.finish()
        assert steps(saver) == [5, 10, 15]
    assert not saver.record_evaluation(15, {"score": 0.9})
    saver.finish()
    assert steps(saver) == [10, 15]


def test_a_checkpoint_that_is_half_deleted_is_none(tmp_path, monkeypatch):
    for step in (1, 2):
        checkpoint.save(tmp_path, {"step": step}, [b"rank"], {})

    def fails(path: Path, **how: Any):
        (Path(path) / "state.pt").unlink()

    monkeypatch.setattr(shutil, "rmtree", fails)
    checkpoint.prune(tmp_path, 1, None)
    assert [path.name for path in checkpoint.listed(tmp_path)] == ["step-00000002"]


def test_an_evaluation_is_that_of_its_own_checkpoint_only(made):
    saver = made(checkpoint_async=True)
    saver.save(5)
    assert not saver.record_evaluation(5, {"score": 0.5})
    saver.save(10)
    saver.finish()
    assert [checkpoint.read_manifest(path)["metrics"] for path in checkpoint.listed(saver.folder)
            ] == [{"score": 0.5}, {}]
