"""Evaluation reads its examples with `train.workers`, each once, and leaves training alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

from gpu_engine import Task
from gpu_engine.training.evaluate import Evaluation
from gpu_engine.training.precision import Precision
from gpu_engine.worker.rank.group import Group
from gpu_engine.worker.rank.job import Identity

from . import ranks
from .conftest import recorded

HELD = f"{Path(__file__).with_name('held_task.py')}:Held"
EXAMPLES = 101


def evaluated(folder: Path, kind: str, workers: int, world: int, **train) -> tuple[Path, list]:
    run = folder / f"{kind or 'map'}-{workers}-{world}"
    (run / "record").mkdir(parents=True)
    ranks.write_plan(run, HELD, world=world, size=24, train={
        "steps": 2, "lr": 1e-30, "workers": workers, "eval_every": 1, **train},
        params={"held_out": EXAMPLES, "kind": kind, "noise": 0.5, "dropout": 0.5,
                "record": str(run / "record")})
    ranks.train(run)
    assert not ranks.read(run, 0, "warning")
    return run, [{k: v for k, v in e.items() if k not in ("t", "kind", "step")}
                 for e in ranks.read(run, 0, "eval")]


@pytest.mark.parametrize("kind", ["", "Stream"])
def test_the_same_figures_from_any_number_of_workers_and_ranks(tmp_path, kind):
    """To the last bit, including random numbers in dataset and metrics, and at each evaluation."""
    alone = None
    for world, workers in ((1, 0), (1, 2), (2, 0), (2, 3)):
        _, found = evaluated(tmp_path, kind, workers, world)
        assert [e.pop("in_worker") for e in found] == [float(workers > 0)] * 2
        assert found[0]["numbers"] == (EXAMPLES - 1) / 2
        assert 0 < found[0]["drawn"] < 1
        assert found[0] == found[1]
        alone = alone or found
        assert found == alone


@pytest.mark.parametrize("workers", [0, 2])
def test_each_chunk_draws_its_own_random_numbers(tmp_path, workers):
    """In the dataset and in the metrics: a mean over chunks that draw alike is no mean over
    draws."""
    run, _ = evaluated(tmp_path, "", workers, 1)
    drawn = [line.split() for line in (run / "record" / "drawn").read_text().splitlines()]
    assert len(drawn) == 10
    for once in drawn[:5], drawn[5:]:
        assert [len(set(numbers)) for numbers in zip(*once, strict=True)] == [5, 5]


@pytest.mark.parametrize("kind", ["ByWorker", "ByRankAndWorker"])
def test_streams_that_divide_themselves_are_counted_once(tmp_path, kind):
    for world, workers in ((1, 2), (2, 2)):
        _, found = evaluated(tmp_path, kind, workers, world)
        assert [e["numbers"] for e in found] == [(EXAMPLES - 1) / 2] * 2
        assert [e["in_worker"] for e in found] == [1.0] * 2


@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_uses_up_no_random_numbers_of_training(tmp_path, workers):
    often, _ = evaluated(tmp_path / "often", "", workers, 1, steps=6)
    once, found = evaluated(tmp_path / "once", "", workers, 1, steps=6, eval_every=0)
    assert recorded(often) == recorded(once)
    assert len(recorded(often)) == 6
    assert len(found) == 1


@pytest.mark.parametrize("size", [1, 2, 9])
def test_each_chunk_is_read_by_one_rank(size):
    """Figures would be the same if each rank read all of them; the time would not. With more ranks
    than chunks, some read nothing."""
    class Notes(Task):
        def metrics(self, model, batch):
            seen.append(batch[0].tolist())
            return {"count": len(seen[-1])}

    seen: list[list[int]] = []
    for rank in range(size):
        group = Group(Identity(rank=rank, world_size=size))
        Evaluation(Notes(), TensorDataset(torch.arange(EXAMPLES)), 24, group,
                   [torch.device("cpu")]).run(torch.nn.Linear(1, 1), Precision("off", "cpu"))
    assert sorted(seen) == [list(range(at, min(at + 24, EXAMPLES)))
                            for at in range(0, EXAMPLES, 24)]
