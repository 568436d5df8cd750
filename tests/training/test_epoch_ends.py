"""Between two epochs, ranks wait for each other only where there is a reason to."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset, default_collate

from gpu_engine import Task
from gpu_engine.training.data import EpochSampler, MapData
from gpu_engine.training.loop import Loop, Position
from gpu_engine.training.precision import Precision
from gpu_engine.training.schedule import Schedule
from gpu_engine.worker.rank.group import Group
from gpu_engine.worker.rank.job import Identity
from gpu_engine.worker.rank.process import Signals
from gpu_engine.worker.rank.recorder import Recorder

from . import ranks

DATA = TensorDataset(torch.arange(12.0).view(12, 1))
CPU = torch.device("cpu")


class Watched(Group):
    """A group of one that notes what is asked of the ranks."""

    def __init__(self) -> None:
        super().__init__(Identity())
        self.asked: list[str] = []

    def barrier(self) -> None:
        self.asked.append("barrier")

    def all_reduce_max(self, values: list[float]) -> list[float]:
        self.asked.append("all_reduce_max")
        return values


class Mean(Task):
    """Brings one number to 0."""

    def loss(self, model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        return model(batch[0]).square().mean()


class Plain:
    """A strategy for one device, as far as a loop needs it."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def check(self) -> None:
        pass

    def check_pass(self) -> None:
        pass


@pytest.mark.parametrize(("evaluates", "settled"), [(True, 3), (False, 1)])
def test_an_epochs_end_is_waited_for_if_there_is_an_evaluation(
        tmp_path: Path, evaluates: bool, settled: int) -> None:
    """With none, the losses are waited for at the end of the run only."""
    evaluations, model = [], nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    group = Watched()
    data = MapData(DATA, EpochSampler(12, 4, 1, 1), seed=0, first=0, count=1, workers=0,
                   device=CPU, collate=default_collate, default_collate=True)
    recorder = Recorder(tmp_path / "events")
    at = Position()

    def evaluate() -> bool:
        evaluations.append(at.step)
        return True

    train = SimpleNamespace(clip=0.0, on_nonfinite="stop", eval_every=0, checkpoint_every=0,
                            skip_steps=())
    loop = Loop.__new__(Loop)
    vars(loop).update(
        job=SimpleNamespace(spec=SimpleNamespace(train=train),
                            batch=SimpleNamespace(accumulate=1), micro=4),
        task=Mean(), data=data, strategy=Plain(model), optimizer=optimizer,
        schedule=Schedule(Mean(), optimizer, 9, lr=0.001, params={}, evaluates=False),
        precision=Precision("off", "cpu"), group=group, recorder=recorder, signals=Signals(),
        at=at, total_steps=9, epochs=None, evaluation=evaluates or None, evaluate=evaluate,
        check_state=lambda: None, steps_per_epoch=3)
    loop.__init__()
    assert loop.train() == "completed"
    recorder.close()
    assert (at.step, at.epoch) == (9, 2)
    assert evaluations == ([3, 6] if evaluates else [])
    assert group.asked.count("barrier") == 3
    assert group.asked.count("all_reduce_max") == settled


@pytest.mark.parametrize("held_out", [0, 4])
def test_real_ranks_ask_each_other_between_epochs_only_to_evaluate(
        tmp_path: Path, held_out: int) -> None:
    asked = Path(__file__).with_name("asked_task.py")
    run = ranks.write_plan(tmp_path / "run", f"{asked}:Asked", world=2, size=4,
                           params={"out": str(tmp_path), "held_out": held_out},
                           train={"epochs": 3, "workers": 0})
    ranks.train(run)
    for rank in "01":
        first, *others = [int(line) for line in (tmp_path / rank).read_text().splitlines()]
        assert len(others) == 8
        more = [count - first for count in others]
        if held_out:
            assert more == sorted(more)
            assert len(set(more)) == 3
        else:
            assert more == [0] * 8
