"""Between two epochs, ranks wait for each other only where there is a reason to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset, Subset, TensorDataset, default_collate

from gpu_engine import Task
from gpu_engine.training.data import EpochSampler, MapData
from gpu_engine.training.division import KnownDivision
from gpu_engine.training.loop import Loop, Position
from gpu_engine.training.precision import Precision
from gpu_engine.training.schedule import Schedule
from gpu_engine.training.stream import StreamData
from gpu_engine.training.waiting_data import WaitingData
from gpu_engine.worker.rank.identity import Identity
from gpu_engine.worker.rank.process_group import Group
from gpu_engine.worker.rank.recorder import Recorder
from gpu_engine.worker.rank.signals import Signals

from . import ranks

DATA = TensorDataset(torch.arange(12.0).view(12, 1))
CPU = torch.device("cpu")


class Watched(Group):
    """A group of one that notes what is asked of the ranks, and knows of one that is slow or
    not."""

    def __init__(self, slow: bool) -> None:
        super().__init__(Identity())
        self._slow = slow
        self.asked: list[str] = []

    def barrier(self) -> None:
        self.asked.append("barrier")

    def all_reduce_max(self, values: list[float]) -> list[float]:
        self.asked.append("all_reduce_max")
        return [max(value, float(self._slow)) for value in values]


def map_data(data: object = DATA, workers: int = 0, collate: Callable = default_collate) -> MapData:
    return MapData(data, EpochSampler(12, 4, 1, 1), seed=0, first=0, count=1, workers=workers,
                   device=CPU, collate=collate, default_collate=collate is default_collate)


def met(data: MapData, *, slow: bool) -> list[list[str]]:
    """What is asked of the ranks in each of three epochs, of which the first is a resumed one."""
    group = Watched(slow)
    waiting = WaitingData(group)
    waiting.source = data
    each = []
    for epoch, start in ((0, 1), (1, 0), (2, 0)):
        seen = [batch[0].flatten().tolist() for batch in waiting.epoch(epoch, start)]
        assert seen == [batch[0].flatten().tolist() for batch in data.epoch(epoch, start)]
        each.append(list(group.asked))
        group.asked.clear()
    return each


def test_ranks_whose_data_begins_at_once_meet_in_the_first_epoch_only() -> None:
    assert met(map_data(), slow=False) == [["barrier", "all_reduce_max"], [], []]


def test_one_rank_whose_data_takes_long_makes_all_meet() -> None:
    always = [["barrier", "all_reduce_max"], ["barrier"], ["barrier"]]
    assert met(map_data(), slow=True) == always
    assert met(map_data(Subset(DATA, range(12))), slow=False) == always


class Epochs(TensorDataset):
    """Does something of its own at the beginning of an epoch."""

    def set_epoch(self, epoch: int) -> None:
        pass


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


def test_only_indexing_tensors_here_begins_at_once() -> None:
    def own(examples: list) -> list:
        return examples

    assert map_data().begins_at_once
    assert not map_data(workers=1).begins_at_once
    assert not map_data(Epochs(*DATA.tensors)).begins_at_once
    assert not map_data(Subset(DATA, range(12))).begins_at_once
    assert not map_data(collate=own).begins_at_once
    stream = StreamData(KnownDivision(Stream(), frozenset()), micro=1, accumulate=1, rank=0,
                        ranks=1, workers=0, device=CPU, collate=default_collate, seed=0,
                        start_all_reduce_min=lambda v: lambda: v)
    assert not stream.begins_at_once


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
    group = Watched(slow=False)
    data = WaitingData(group)
    data.source = map_data()
    recorder = Recorder(tmp_path / "events")
    at = Position()

    def evaluate() -> bool:
        evaluations.append(at.step)
        return True

    loop = Loop(
        task=Mean(), data=data, strategy=Plain(model),  # pyright: ignore[reportArgumentType]
        optimizer=optimizer, schedule=Schedule(Mean(), optimizer, 9, lr=0.001, params={},
                                               evaluates=False),
        precision=Precision("off", "cpu"), group=group, recorder=recorder, signals=Signals(),
        at=at, total_steps=9, epochs=None, accumulate=1, examples_a_step=4, clip=0.0,
        on_nonfinite="stop", eval_every=0, save_every=0,
        evaluate=evaluate if evaluates else None, save=lambda: None, check_state=lambda: None,
        steps_per_epoch=3)
    assert loop.run() == "completed"
    recorder.close()
    assert (at.step, at.epoch) == (9, 2)
    assert evaluations == ([3, 6] if evaluates else [])
    assert group.asked == ["barrier", *["all_reduce_max"] * (1 + settled)]


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
