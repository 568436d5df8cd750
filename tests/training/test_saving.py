"""Saving while training goes on: what can be seen of it, and what waits for it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

from gpu_engine.devices import host
from gpu_engine.events.view import RunView
from gpu_engine.training import checkpoint
from gpu_engine.training.saving import CannotCopy, Copier

from ..event_lines import from_dict
from . import ranks
from .conftest import names, recorded
from .test_resume import assert_same


def step(run: Path, rank=0) -> int:
    steps = ranks.read(run, rank, "step")
    return steps[-1]["step"] if steps else 0


def phase(run: Path, rank=0) -> dict:
    return (ranks.read(run, rank, "phase") or [{}])[-1]


@pytest.fixture
def hold(tmp_path):
    """A file that holds up a rank until the file is removed."""
    file = tmp_path / "hold"
    file.touch()
    return file


@pytest.fixture
def held(make, hold):
    """Make a run whose checkpoints don't reach the disk while `hold` is there."""
    def plan(params: dict | None = None, **options) -> Path:
        own = {"hold_saves": str(hold), "pause": 0.01, **(params or {})}
        return make("run", own, size=24, **options)
    return plan


def test_training_goes_on_beside_a_save_and_the_next_one_waits(held, make, hold):
    params = {"big": 300_000, "schedule_rate": True, "dropout": 0.3, "held_out": 30}
    train = {"steps": 60, "checkpoint_every": 20, "keep": 9, "workers": 2, "eval_every": 20}
    run = held({**params, "pause": 0.07}, train=train)
    with ranks.started(run) as first:
        # The save after step 20 is held up. Training goes on to the next save and waits there.
        first.until(lambda: phase(run).get("phase") == "checkpoint" and step(run) == 40)
        beside = [e for e in ranks.read(run, 0, "phase")
                  if "done" in e and e["phase"] not in ("checkpoint", "eval")]
        assert beside
        told = phase(run)
        assert told["done"] > 1_200_000
        assert 1_200_000 < told["total"] < told["done"] + 100_000
        assert names(run) == []
        assert ranks.read(run, 0, "checkpoint") == []
        assert RunView().fold(0, from_dict(told)).busy == "checkpoint, 1.2 MiB of 1.2 MiB written"
        hold.unlink()
        assert first.wait() == [0]
    events = ranks.read(run, 0, "checkpoint")
    assert [e["step"] for e in events] == [20, 40, 60]
    assert events[0]["blocked"] < events[0]["seconds"]
    assert events[2]["blocked"] == events[2]["seconds"]  # the last one is waited for
    # The late write has the state of its own step, as if training had waited.
    other = make("other", params, size=24, train={**train, "checkpoint_async": False})
    ranks.train(other)
    assert recorded(run) == recorded(other)
    assert names(run) == names(other)
    for mine, theirs in zip(*(checkpoint.listed(r / "checkpoints") for r in (run, other)),
                            strict=True):
        found = checkpoint.read_manifest(mine)["metrics"]
        assert found == checkpoint.read_manifest(theirs)["metrics"]
        assert found["loss"] > 0
        for part in ("step", "model", "optimizer"):
            assert_same(*(ranks.saved(p)[part] for p in (mine, theirs)))
        assert_same(*(checkpoint.load_ranks(p) for p in (mine, theirs)))


def test_a_stop_waits_for_the_save_under_way(held, hold):
    run = held(train={"steps": 10_000, "checkpoint_every": 5})
    with ranks.started(run) as first:
        first.until(lambda: step(run) > 5)
        first.signal(0, signal.SIGTERM)
        first.until(lambda: "done" in phase(run) and phase(run)["phase"] == "checkpoint")
        assert first.processes[0].poll() is None
        hold.unlink()
        assert first.wait() == [0]
    assert ranks.read(run, 0, "end")[-1]["outcome"] == "stopped"
    last = step(run)
    assert names(run)[0] == checkpoint.name_of(5)
    assert names(run)[-1] == checkpoint.name_of(last)
    for path in checkpoint.listed(run / "checkpoints"):
        checkpoint.verify(path)


@pytest.mark.parametrize("trouble", ["raise_at", "nan_at"])
def test_a_failure_waits_for_the_save_under_way(held, hold, trouble):
    run = held({trouble: 12}, train={"steps": 500, "checkpoint_every": 10})
    with ranks.started(run) as first:
        first.until(lambda: "done" in phase(run) and phase(run)["phase"] == "checkpoint")
        assert first.processes[0].poll() is None
        hold.unlink()
        assert first.wait() == [1]
    assert names(run) == [checkpoint.name_of(10)]
    checkpoint.verify(run / "checkpoints" / checkpoint.name_of(10))
    assert ranks.read(run, 0, "error")[-1]["type"] in ("ArithmeticError", "NonFiniteLoss")


def test_state_that_could_not_be_loaded_ends_the_run_at_once(make):
    run = make("run", {"odd_state": "path"}, size=24, train={"steps": 6})
    ranks.train(run, expect=1)
    error = ranks.read(run, 0, "error")[-1]
    assert error["step"] == 1  # there is nothing to lose yet
    assert error["traceback"] == ""
    assert "PosixPath" in error["message"]
    again = make("again", {"odd_state": "numpy"}, size=24, train={"steps": 3})
    ranks.train(again)
    ranks.train(again, attempt=2)


def test_without_room_for_a_copy_training_waits_with_a_warning(make, monkeypatch):
    monkeypatch.setattr(host, "memory", lambda: (6_000_000, 10_000_000))
    with pytest.raises(CannotCopy, match="4,000,000 are free"):
        Copier(torch.device("cpu")).copy({"w": torch.ones(1 << 20)})
    run = make("run", {"little_memory": True}, size=24, train={"steps": 6, "checkpoint_every": 2})
    ranks.train(run)
    warnings = [e["message"] for e in ranks.read(run, 0, "warning")]
    assert len(warnings) == 1
    assert "training waits while a checkpoint is written" in warnings[0]
    events = ranks.read(run, 0, "checkpoint")
    assert [e["step"] for e in events] == [2, 4, 6]
    assert all(e["blocked"] == e["seconds"] for e in events)


def test_no_memory_for_writing_is_a_warning(tmp_path, monkeypatch):
    def none(*_: object):
        raise MemoryError

    monkeypatch.setattr(torch, "save", none)
    with pytest.raises(checkpoint.NotWritten, match="not enough memory"):
        checkpoint.save(tmp_path, {"step": 1}, [], {})
    assert list(tmp_path.iterdir()) == []


def test_bytes_are_counted_as_they_are_written(tmp_path):
    seen: list[tuple[int, int | None]] = []

    class Watched(checkpoint.Progress):
        def __setattr__(self, name: str, value: int):
            super().__setattr__(name, value)
            if name == "done":
                seen.append((value, self.total))

    shared = torch.zeros(1000, dtype=torch.float64)
    state = {"step": 1, "a": shared, "tied": shared[10:], "b": [torch.ones(500)]}
    saved = checkpoint.save(tmp_path, state, [b"x" * 100], {}, Watched())
    assert seen[-1][0] > saved.size  # the manifest too
    assert seen == sorted(seen)
    assert {total for done, total in seen if done} == {8000 + 7920 + 2000 + 100}
