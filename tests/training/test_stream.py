"""Each example of an iterable dataset is used once in an epoch, however the dataset divides itself.
The datasets, and the rank that reads them, are in streams.py."""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import sys
import threading
import types
from pathlib import Path

import pytest
import torch

from gpu_engine.common.errors import UserError
from gpu_engine.training.division import known_division, shard
from gpu_engine.training.division_watch import Watch
from gpu_engine.training.reader_reports import ReaderReport, doubts, fingerprint, miscounted
from gpu_engine.training.stream import StreamData

from . import ranks, streams
from .conftest import recorded

WORLDS = (1, 2)
NAMES = [kind.__name__ for kind in streams.CLEAR] + ["chained"]
DOUBTS = {"Unseen": "did not ask for its rank", "Late": "only after its first example",
          "Counted": f"len\\(\\) is {streams.EXAMPLES}, but an epoch gave",
          "NoNoise": "begin with the same example", "ShardsNothing": "begin with the same example",
          "OwnOrder": "begin with different examples"}


@pytest.fixture(scope="module")
def read(tmp_path_factory) -> dict[tuple[str, int, int], list[dict]]:
    """What each rank has read: [kind, workers, ranks][rank]. Made once for all test processes."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "streams"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            start_ranks(folder)
            (folder / "done").touch()
    found: dict[tuple[str, int, int], list[dict]] = {}
    for world in WORLDS:
        for rank in range(world):
            for key, value in json.loads((folder / f"{world}-{rank}.json").read_text()).items():
                name, workers = key.split()
                found.setdefault((name, int(workers), world), []).append(value)
    return found


def start_ranks(folder: Path) -> None:
    env = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", PYTHONWARNINGS="ignore")
    env = {k: v for k, v in env.items() if k not in ("RANK", "WORLD_SIZE")}
    log = folder / "log"
    started = [ranks.zygote().start(
        [str(rank), str(world), str(folder / f"store{world}"),
         str(folder / f"{world}-{rank}.json")], env, log, Path(streams.__file__))
        for world in WORLDS for rank in range(world)]
    try:
        assert [p.wait(600) for p in started] == [0] * len(started), log.read_text()
    finally:
        for process in started:
            process.kill()


def numbers(read, name: str, workers: int, world: int, epoch: int) -> list[int]:
    return [n for rank in read[name, workers, world] for b in rank["epochs"][epoch] for n in b[0]]


@pytest.mark.parametrize("name", NAMES)
def test_each_example_once_an_epoch(read, name: str) -> None:
    for world in WORLDS:
        for workers in streams.workers_of(name):
            for epoch in range(2):
                first = 1000 * epoch if name == "ByEpoch" else 0
                assert sorted(numbers(read, name, workers, world, epoch)) == list(
                    range(first, first + streams.EXAMPLES)), (world, workers, epoch)
            assert [rank["warnings"] for rank in read[name, workers, world]] == [[]] * world


# Without datasets that keep their rank: those do not read it before the first example of a later
# epoch, so the first examples of all readers have the same random numbers.
@pytest.mark.parametrize("name", [n for n in NAMES if not n.startswith("AsksOnce")])
def test_random_numbers_differ_between_ranks_workers_examples_and_epochs(read, name: str) -> None:
    for world in WORLDS:
        for workers in streams.workers_of(name):
            batches = [b for rank in read[name, workers, world] for e in rank["epochs"] for b in e]
            drawn = [x for b in batches for x in b[1]]
            assert len(drawn) == 2 * streams.EXAMPLES
            for kind in range(3):  # torch, random, numpy
                assert len({x[kind] for x in drawn}) == len(drawn), (world, workers, kind)
            assert len({b[2] for b in batches}) == len(batches), "collate draws the same"


@pytest.mark.parametrize("name", ["Plain", "Shuffled", "Buffered", "ByEpoch"])
def test_a_step_sees_the_same_examples_from_any_number_of_readers(read, name: str) -> None:
    """Each example also has the same random numbers, as the readers share one stream."""
    def steps(workers: int, world: int, epoch: int) -> list:
        of_ranks = [rank["epochs"][epoch] for rank in read[name, workers, world]]
        dealt = [batch for step in zip(*of_ranks, strict=True) for batch in step]
        return [[n, tuple(d)] for batch in dealt for n, d in zip(batch[0], batch[1], strict=True)]
    for epoch in range(2):
        alone = steps(0, 1, epoch)
        for world in WORLDS:
            for workers in streams.workers_of(name):
                assert steps(workers, world, epoch) == alone
    assert steps(0, 1, 0) != steps(0, 1, 1)


@pytest.mark.parametrize("name", DOUBTS)
def test_a_doubtful_division_gives_a_warning_with_the_counts(read, name: str) -> None:
    # A single reader has nothing to divide. len() may be that of a rank's part.
    several = {"Unseen": [(0, 2), (2, 2)], "Counted": [(2, 1), (2, 2)]}
    for workers, world in several.get(name, [(2, 1), (0, 2), (2, 2)]):
        kept = len(numbers(read, name, workers, world, 0))
        warnings = [rank["warnings"] for rank in read[name, workers, world]]
        text = "\n".join(warnings[0])
        assert not any(warnings[1:]), "one rank speaks"
        assert re.search(DOUBTS[name], text), (workers, world, text)
        assert "divided_by" in text
        assert f"{world * max(workers, 1)} readers" in text
        in_all = int(text.rpartition(" in all")[0].rpartition(" ")[2])
        assert kept <= in_all < kept + world * max(workers, 1) * streams.MICRO + 6
    assert read[name, 0, 1][0]["warnings"] == []


def test_a_stream_that_divides_late_is_dealt_out_until_then(read) -> None:
    for workers, world in ((2, 1), (0, 2), (2, 2)):
        first, second = (numbers(read, "Late", workers, world, epoch) for epoch in range(2))
        assert len(set(second)) == len(second)
        assert sorted(first) == sorted(second)


# --- ranks one after the other, in this process ------------------------------------------------


def one_rank(kind, rank: int, ranks: int, workers: int, start: int = 0) -> list[list]:
    """The batches of two epochs, the second from step `start` on."""
    data = StreamData(kind(), micro=streams.MICRO, accumulate=1, rank=rank, ranks=ranks,
                      workers=workers, device=torch.device("cpu"), collate=streams.collate, seed=7,
                      start_all_reduce_min=lambda value: lambda: value)
    return [list(data.epoch(0)), list(data.epoch(1, start))]


@pytest.mark.parametrize("kind", [streams.Plain, streams.Shuffled, streams.Buffered,
                                  streams.Sharded, streams.ShardedNumShardsFirst,
                                  streams.ByEnvironment], ids=lambda kind: kind.__name__)
def test_two_ranks_see_each_example_once(kind, monkeypatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    seen = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        torch.manual_seed(rank)
        random.seed(rank)
        seen.append(one_rank(kind, rank, 2, 0))
    for epoch in range(2):
        dealt = [b for of_rank in seen for b in of_rank[epoch]]
        assert sorted(n for b in dealt for n in b[0]) == list(range(streams.EXAMPLES))
    drawn = [b[2] for of_rank in seen for epoch in of_rank for b in epoch]
    assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize("kind", [streams.ByWorker, streams.ShuffledByWorker, streams.ByEpoch,
                                  streams.ShardedAndByWorker], ids=lambda kind: kind.__name__)
def test_two_workers_see_each_example_once_and_a_start_gives_the_rest(kind) -> None:
    first, second = one_rank(kind, 0, 1, 2)
    offset = 1000 if kind is streams.ByEpoch else 0
    for epoch, batches in enumerate((first, second)):
        assert sorted(n - offset * epoch for b in batches for n in b[0]) == list(
            range(streams.EXAMPLES))
    drawn = [x for b in first + second for _, x in zip(b[0], b[1], strict=True)]
    assert len({x[1] for x in drawn}) == len(drawn)
    assert one_rank(kind, 0, 1, 2, start=5)[1] == second[5:]


def test_examples_left_over_in_workers_make_batches_together() -> None:
    """Three workers with 24 + 24 + 22 examples, each not a multiple of the batch's 5."""
    class Uneven(streams.ByWorker):
        def __init__(self) -> None:
            super().__init__(range(70))

    data = StreamData(Uneven(), micro=5, accumulate=1, rank=0, ranks=1, workers=3,
                      device=torch.device("cpu"), collate=streams.collate, seed=7,
                      start_all_reduce_min=lambda value: lambda: value)
    assert sorted(n for b in data.epoch(0) for n in b[0]) == list(range(70))


def test_a_webdataset_without_a_nodesplitter_is_a_user_error() -> None:
    class Refuses(streams.Plain):
        def mine(self):
            raise ValueError("you need to add an explicit nodesplitter to your input pipeline for "
                             "multi-node training")  # webdataset 1.0's own words
    with pytest.raises(UserError, match=r"nodesplitter=webdataset\.split_by_node"):
        one_rank(Refuses, 0, 2, 0)


# --- in words, without processes --------------------------------------------------------------


class Odd:
    def __init__(self) -> None:
        self.called: list = []

    def shard(self, *given):
        self.called = list(given)


@pytest.mark.parametrize(("signature", "expected"), [
    ("self, index, count", "1 of 4"), ("self, num_shards, index", "1 of 4"),
    ("self, n_shards, shard_id, /", "1 of 4"), ("self, i, n", "1 of 4"),
    ("self, a, b", "1 of 4"), ("self, *, index, num_shards", "1 of 4"),
    ("self, num_shards, index, contiguous=True", "1 of 4"), ("self, total, part", "1 of 4")])
def test_shard_is_called_by_what_its_parameters_mean(signature: str, expected: str) -> None:
    names = [n.strip(" ") for n in signature.split(",") if n.strip(" ") not in ("self", "/", "*")]
    counts = {"count", "num_shards", "n_shards", "n", "b", "total"}
    count = next(n for n in names if n in counts)
    index = next(n for n in names if n not in counts and "=" not in n)
    scope: dict = {}
    exec(f"class Data:\n def shard({signature}): return f'{{{index}}} of {{{count}}}'", scope)
    assert shard(scope["Data"](), 1, 4) == expected


def test_shard_with_unnamed_parameters_is_called_as_documented() -> None:
    odd = Odd()
    shard(odd, 1, 4)
    assert odd.called == [1, 4]


def test_a_divided_by_that_means_nothing_is_refused() -> None:
    data = streams.Plain()
    data.divided_by = "workers"
    with pytest.raises(UserError, match=r"Plain\.divided_by is 'workers'.*\"rank and worker\""):
        known_division(data, 0, 2)
    data.divided_by = "rank and worker"
    assert known_division(data, 0, 2).by == {"rank", "worker"}
    data.divided_by = "nothing"
    assert known_division(data, 0, 2, watched=frozenset({"rank"})).by == frozenset()


def test_hugging_faces_streams_are_told_their_rank_by_its_own_function(monkeypatch) -> None:
    """The library is large, so a stand-in has the one function that is called."""
    kind = type("IterableDataset", (streams.Plain,), {"__module__": "datasets.iterable_dataset",
                                                      "_distributed": None})
    library, distributed = types.ModuleType("datasets"), types.ModuleType("datasets.distributed")

    def split_dataset_by_node(dataset, rank: int, world_size: int):
        part = kind(dataset.numbers[rank::world_size])
        part._distributed = (rank, world_size)
        return part

    distributed.split_dataset_by_node = split_dataset_by_node
    monkeypatch.setitem(sys.modules, "datasets", library)
    monkeypatch.setitem(sys.modules, "datasets.distributed", distributed)
    found = known_division(kind(), 1, 3)
    assert found.by == {"rank", "worker"}
    assert list(found.data.numbers) == list(range(1, streams.EXAMPLES, 3))
    assert known_division(found.data, 1, 3).data is found.data, "its author has split it already"
    alone = kind()
    assert known_division(alone, 0, 1).data is alone


def test_only_a_number_with_its_count_means_a_division(monkeypatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    watch = Watch()
    read, listed = type(os.environ).__getitem__, type(os.environ).__iter__
    with watch.on():
        assert dict(os.environ)["RANK"] == "0"
        assert os.environ.copy()
        assert watch.divides == frozenset()
        assert os.environ.get("WORLD_SIZE") == "2"
        assert watch.divides == frozenset()
        assert "RANK" in os.environ
        assert watch.divides == {"rank"}
    assert (type(os.environ).__getitem__, type(os.environ).__iter__) == (read, listed)


def test_only_threads_that_the_dataset_starts_count(monkeypatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    now = threading.Event()

    def ask() -> tuple[str, str]:
        now.wait()
        return os.environ["RANK"], os.environ["WORLD_SIZE"]

    others, own = threading.Thread(target=ask), threading.Thread(target=ask)
    others.start()
    watch = Watch()
    with watch.on():
        now.set()
        others.join()
        assert watch.divides == frozenset()
        own.start()
        own.join()
        assert watch.divides == {"rank"}


def test_doubts_need_something_to_compare() -> None:
    def report(by: str, first: str | None) -> ReaderReport:
        return ReaderReport(frozenset(by.split()), False, first)
    assert doubts([[report("", "a")], [report("", "a")]]) == []
    assert doubts([[report("rank", "a")], [report("rank", "b")]]) == []
    assert doubts([[report("", None)], [report("", "a")]]) == []
    assert doubts([[report("rank", None)], [report("rank", None)]]) == []
    assert "different" in doubts([[report("", "a")], [report("", "b")]])[0]
    assert "same" in doubts([[report("worker", "a"), report("worker", "a")]])[0]
    assert doubts([[report("worker", "a"), report("worker", "b")],
                   [report("worker", "a"), report("worker", "b")]]) == []
    assert doubts([[report("rank", "a")], [report("", "b")]]) != []


def test_counts_that_may_be_right_give_no_warning() -> None:
    def counts(*kept: int, ended: bool = True, by: str = "") -> list[list[ReaderReport]]:
        return [[ReaderReport(frozenset(by.split()), False, None, k, k, ended)] for k in kept]
    assert miscounted(counts(50, 50), 100) is None
    assert miscounted(counts(30, 30), 100) is None
    assert miscounted(counts(25, 25), 100) is not None
    assert miscounted(counts(25, 25, ended=False), 100) is None
    assert miscounted(counts(100, 100), 100) is not None
    assert miscounted(counts(100, 100, by="rank"), 100) is None  # a len() of its rank's part


def test_equal_examples_have_equal_fingerprints() -> None:
    import numpy as np

    def one(value: float):
        return {"x": torch.tensor([value, 1.0]), "y": (np.array([value]), "text", None, 3)}
    assert fingerprint(one(1.0)) == fingerprint(one(1.0)) is not None
    assert fingerprint(one(1.0)) != fingerprint(one(2.0))
    assert fingerprint(lambda: 0) is None


# --- through the engine -----------------------------------------------------------------------


def test_a_rank_s_step_count_is_the_shortest_stream_s(make) -> None:
    """94 examples for 3 ranks in batches of 4: 7 whole global batches, in the stream's order,
    with and without workers."""
    for workers in (0, 2):
        run = make(f"run{workers}", {"stream": True, "examples": 94}, world=3, size=12,
                   train={"epochs": 2, "workers": workers})
        ranks.train(run)
        seen = [recorded(run, r) for r in range(3)]
        assert [len(rank) for rank in seen] == [14, 14, 14]
        for step, parts in enumerate(zip(*seen, strict=True)):
            first = step % 7 * 12
            assert [n for _, b in parts for n in b] == list(range(first, first + 12))
        assert {ranks.read(run, r, "end")[-1]["steps"] for r in range(3)} == {14}


def test_streams_that_divide_themselves_in_a_run(make) -> None:
    """One divides by rank (from torch.distributed) and worker; another can't be recognised."""
    run = make("known", {"stream": True, "stream_kind": "ByRankAndWorker", "examples": 96},
               world=2, size=8, train={"epochs": 1, "workers": 2})
    ranks.train(run)
    seen = [n for r in range(2) for _, b in recorded(run, r) for n in b]
    assert sorted(seen) == list(range(96))
    assert not ranks.read(run, 0, "warning")
    run = make("unseen", {"stream": True, "stream_kind": "Unseen", "examples": 96},
               world=2, size=8, train={"epochs": 1, "workers": 0})
    ranks.train(run)
    warnings = [w["message"] for w in ranks.read(run, 0, "warning")]
    assert len(warnings) == 2
    assert "divided_by" in warnings[0]
    assert "48 in all" in warnings[1]


def test_data_that_is_no_dataset_is_refused(make) -> None:
    run = make("run", {"stream": True, "stream_kind": "generator"}, size=12)
    ranks.train(run, expect=1)
    error = ranks.read(run, 0, "error")[-1]
    assert "Toy.train_data returned a generator" in error["message"]
    assert error["traceback"] == ""


@pytest.mark.parametrize("stream", ["Stream", "ByEpoch", "ByRankAndWorker"])
@pytest.mark.parametrize("workers", [0, 2])
def test_stopped_in_the_second_epoch_and_resumed(make, stream: str, workers: int) -> None:
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
