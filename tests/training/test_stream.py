"""Each example of an iterable dataset is used once in an epoch, however the dataset divides itself.
The datasets, and the rank that reads them, are in streams.py."""

from __future__ import annotations

import fcntl
import json
import os
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from gpu_engine import Task
from gpu_engine.common.errors import UserError
from gpu_engine.training import stream
from gpu_engine.training.stream import StreamData, divided_by

from . import ranks, streams
from .conftest import recorded

WORLDS = (1, 2)
NAMES = [kind.__name__ for kind in streams.KINDS] + ["chained"]


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """What each rank has read in each epoch: [kind, workers, ranks][rank][epoch]. Made once for all
    test processes."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "streams"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            start_ranks(folder)
            (folder / "done").touch()
    found: dict[tuple[str, int, int], list[list]] = {}
    for world in WORLDS:
        for rank in range(world):
            for key, value in json.loads((folder / f"{world}-{rank}.json").read_text()).items():
                name, workers = key.split()
                found.setdefault((name, int(workers), world), []).append(value)
    return found


def start_ranks(folder: Path):
    env = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", PYTHONWARNINGS="ignore")
    env = {k: v for k, v in env.items() if k not in ("RANK", "WORLD_SIZE")}
    log = folder / "log"
    started = [ranks.zygote().start(
        [str(rank), str(world), str(folder / f"store{world}"),
         str(folder / f"{world}-{rank}.json")], env, log, Path(streams.__file__))
        for world in WORLDS for rank in range(world)]
    try:
        assert [p.wait() for p in started] == [0] * len(started), log.read_text()
    finally:
        for process in started:
            process.kill()


def numbers(read, name: str, workers: int, world: int, epoch: int) -> list[int]:
    return [n for rank in read[name, workers, world] for b in rank[epoch] for n in b[0]]


@pytest.mark.parametrize("name", NAMES)
def test_each_example_once_an_epoch(read, name):
    for world in WORLDS:
        for workers in streams.workers_of(name):
            for epoch in range(2):
                first = 1000 * epoch if name == "ByEpoch" else 0
                assert sorted(numbers(read, name, workers, world, epoch)) == list(
                    range(first, first + streams.EXAMPLES)), (world, workers, epoch)


def known_by(name: str) -> str:
    return getattr(getattr(streams, name), "divided_by", "nothing")


@pytest.mark.parametrize("name", NAMES)
def test_random_numbers_differ_between_ranks_workers_examples_and_epochs(read, name):
    for world in WORLDS:
        for workers in streams.workers_of(name):
            batches = [b for rank in read[name, workers, world] for e in rank for b in e]
            drawn = [x for b in batches for x in b[1]]
            assert len(drawn) == 2 * streams.EXAMPLES
            # Readers among which the dataset divides draw the same for their first example.
            alike = 0 if known_by(name) == "nothing" else 2 * (world * max(workers, 1) - 1)
            for kind in range(3):  # torch, random, numpy
                assert len({x[kind] for x in drawn}) >= len(drawn) - alike, (world, workers, kind)
            assert len({b[2] for b in batches}) == len(batches), "collate draws the same"


@pytest.mark.parametrize("name", ["Plain", "Shuffled", "Buffered", "ByEpoch"])
def test_a_step_sees_the_same_examples_from_any_number_of_readers(read, name):
    """Each example also has the same random numbers, as the readers share one stream."""
    def steps(workers: int, world: int, epoch: int) -> list:
        of_ranks = [rank[epoch] for rank in read[name, workers, world]]
        dealt = [batch for step in zip(*of_ranks, strict=True) for batch in step]
        return [[n, tuple(d)] for batch in dealt for n, d in zip(batch[0], batch[1], strict=True)]
    for epoch in range(2):
        alone = steps(0, 1, epoch)
        for world in WORLDS:
            for workers in streams.workers_of(name):
                assert steps(workers, world, epoch) == alone
    assert steps(0, 1, 0) != steps(0, 1, 1)


# --- ranks one after the other, in this process ------------------------------------------------


def two_workers(kind, start=0) -> list[list]:
    """The batches of two epochs that one rank reads, the second from step `start` on."""
    group: Any = types.SimpleNamespace(
        rank=0, size=1, barrier=lambda: None,
        start_all_reduce_sum=lambda cell: lambda: cell)
    data = StreamData(kind(), streams.Numbers(), micro=streams.MICRO, accumulate=1, seed=7,
                      workers=2, device=torch.device("cpu"), group=group)
    return [list(data.epoch(0)), list(data.epoch(1, start))]


@pytest.mark.parametrize("kind", [streams.ByWorker, streams.ShuffledByWorker, streams.ByEpoch],
                         ids=lambda kind: kind.__name__)
def test_a_start_in_an_epoch_gives_the_rest(kind):
    assert two_workers(kind, start=5)[1] == two_workers(kind)[1][5:]


def test_what_is_left_over_of_the_workers_parts_goes_to_each_rank_in_turn(monkeypatch):
    """Of four workers, each with five blocks of a dataset that they divide, two ranks get ten."""
    blocks = []
    for rank in range(2):
        for worker in range(4):
            monkeypatch.setattr(stream, "get_worker_info", lambda at=worker: types.SimpleNamespace(
                id=at, num_workers=4))
            reader = stream.StreamReader(streams.ByWorker(range(15)), streams.Numbers(), rank=rank,
                                         ranks=2, workers=4, size=3, seed=7)
            blocks += [rank] * len(list(reader))
    assert (blocks.count(0), blocks.count(1)) == (10, 10)


# --- in words, without processes --------------------------------------------------------------


class Silent(IterableDataset):
    """Does not say what it divides itself by."""

    def __iter__(self):
        return iter(())


def known(data: Any, task: Any = None, *, ranks=1, workers=0) -> set[str]:
    return set(divided_by(data, task or Task(), ranks=ranks, workers=workers))


@pytest.mark.parametrize("who", ["data", "task"])
def test_dataset_or_task_says_what_divides_it(who):
    data, task = Silent(), Task()
    teller: Any = data if who == "data" else task
    for says, by in (("nothing", set()), ("workers", {"worker"}), ("ranks", {"rank"}),
                     ("both", {"rank", "worker"})):
        teller.divided_by = says
        assert known(data, task, ranks=2, workers=2) == by
    teller.divided_by = "rank"
    with pytest.raises(UserError, match=r"divided_by is 'rank'.*\n.*\n.*divided_by = \"nothing\"\n"
                       r".*split_dataset_by_node\)\. The task may say it too, or data\.d"):
        known(data, task)


def test_dataset_is_asked_before_the_task_and_a_single_reader_by_nobody():
    task = Task()
    task.divided_by = "both"
    assert known(streams.Plain(), task, ranks=2) == set()
    assert known(Silent(), workers=1) == set()


# --- through the engine -----------------------------------------------------------------------


def test_a_rank_s_step_count_is_the_shortest_stream_s(make):
    """94 examples for 3 ranks in passes of 4, two a step: 3 whole steps, in the stream's order,
    with and without workers. The seventh pass has no second one, and is not made."""
    for workers in (0, 2):
        run = make(f"run{workers}", {"stream": True, "examples": 94}, world=3, size=24,
                   accumulate=2, train={"epochs": 2, "workers": workers})
        ranks.train(run)
        seen = [recorded(run, r) for r in range(3)]
        assert [len(rank) for rank in seen] == [12, 12, 12]
        for number, parts in enumerate(zip(*seen, strict=True)):
            first = number % 6 * 12
            assert [n for _, b in parts for n in b] == list(range(first, first + 12))
        assert {ranks.read(run, r, "end")[-1]["steps"] for r in range(3)} == {6}


@pytest.mark.parametrize("held_out", [False, True], ids=["training", "held out"])
def test_stream_that_says_nothing_is_refused_before_the_first_step(make, held_out):
    run = make("run", {"stream": not held_out, "held_out": 24 * held_out, "stream_held": held_out,
                       "stream_kind": "Silent", "examples": 96},
               world=2, size=8, train={"epochs": 1, "workers": 2})
    ranks.train(run, expect=1)
    error = ranks.read(run, 0, "error")[-1]
    assert "2 ranks with 2 loader workers each would read Silent" in error["message"]
    assert 'divided_by = "nothing"' in error["message"]
    assert error["traceback"] == ""
    assert not ranks.read(run, 0, "step")


def test_data_that_is_no_dataset_is_refused(make):
    run = make("run", {"stream": True, "stream_kind": "generator"}, size=12)
    ranks.train(run, expect=1)
    error = ranks.read(run, 0, "error")[-1]
    assert "Toy.train_data returned a generator" in error["message"]
    assert error["traceback"] == ""


@pytest.mark.parametrize(("stream", "workers"), [("ByEpoch", 0), ("ByRankAndWorker", 2)])
def test_stopped_in_the_second_epoch_and_resumed(make, stream, workers):
    """With random augmentation and dropout: bit for bit what an undisturbed run does. test_resume
    has the same for data that is read by number."""
    params = {"stream": True, "stream_kind": stream, "examples": 72, "noise": 0.5,
              "dropout": 0.3}
    train = {"epochs": 3, "workers": workers, "checkpoint_every": 2}
    whole = ranks.train(make("whole", params, world=2, size=12, train=train))
    broken = make("broken", {**params, "die_at": 12, "rank": 1}, world=2, size=12, train=train)
    with ranks.started(broken) as first:
        assert -9 in first.wait()
    ranks.train(broken, attempt=2)
    start = ranks.read(broken, 0, "schedule")[-1]["first_step"]
    assert start in (8, 10)  # in the second epoch; the last save may not have been finished
    for rank in range(2):
        expected = recorded(whole, rank)
        assert len(expected) == 18
        assert recorded(broken, rank, 2) == expected[start:]
        losses = [loss for loss, _ in expected]
        assert len(set(losses)) == 18
