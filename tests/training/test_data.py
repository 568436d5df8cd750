"""A step uses the same examples in every mode; an epoch uses each once, except the last few."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    default_collate,
)

from gpu_engine.common.errors import UserError
from gpu_engine.training.data import (
    EpochSampler,
    MapData,
    RankSampler,
    Reader,
    mix,
    permutation,
    tell_epoch,
)

from . import ranks
from .conftest import recorded

shapes = st.builds(
    lambda replicas, accumulate, per_gpu, steps, rest: EpochSampler(
        replicas * accumulate * per_gpu * steps + rest % (replicas * accumulate * per_gpu),
        replicas * accumulate * per_gpu, replicas, accumulate),
    st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.integers(0, 99))


def dealt(sampler: EpochSampler, seed: int, epoch: int, first: int, count: int, start: int = 0):
    sampler = RankSampler(sampler, seed, first, count)
    sampler.set_epoch(epoch, start)
    batches = [(tag, indices.tolist()) for tag, indices in sampler]
    assert len(batches) == len(sampler)
    return batches


@given(shapes, st.integers(0, 2**40), st.integers(0, 1000))
def test_ranks_together_see_what_one_process_sees(sampler: EpochSampler, seed: int,
                                                  epoch: int) -> None:
    alone = EpochSampler(sampler.examples, sampler.global_size, 1, 1)
    whole = [set(indices) for _, indices in dealt(alone, seed, epoch, 0, 1)]
    each = [dealt(sampler, seed, epoch, r, 1) for r in range(sampler.replicas)]
    assert len(whole) == sampler.steps
    for step, expected in enumerate(whole):
        first, last = (s * sampler.accumulate for s in (step, step + 1))
        part = [i for r in each for _, b in r[first:last] for i in b]
        assert len(part) == sampler.global_size
        assert set(part) == expected
    seen = [i for r in each for _, b in r for i in b]
    assert len(seen) == len(set(seen)) == sampler.examples - sampler.dropped
    # DataParallel scatters a batch in order, which gives the same shares as DDP's ranks have.
    together = dealt(sampler, seed, epoch, 0, sampler.replicas)
    for micro, (_, batch) in enumerate(together):
        assert batch == [i for r in each for i in r[micro][1]]


@pytest.mark.parametrize("workers", [0, 1])
def test_before_each_copy_to_the_device_it_is_said(workers: int) -> None:
    """"meta" stands for a GPU: its tensors have no memory."""
    copies: list[None] = []
    sampler = EpochSampler(12, 4, 1, 2)

    class Numbers(Dataset):
        def __len__(self) -> int:
            return 12

        def __getitem__(self, i: int) -> torch.Tensor:
            return torch.tensor([i])

    for device, each in (("meta", 1), ("cpu", 0)):
        for data in (Numbers(), TensorDataset(torch.arange(12))):
            made = MapData(data, sampler, seed=0, first=0, count=1, workers=workers,
                           device=torch.device(device), collate=default_collate,
                           default_collate=True, copies=lambda: copies.append(None))
            for number, batch in enumerate(made.epoch(0), 1):
                tensor = batch[0] if isinstance(batch, list) else batch
                assert tensor.device.type == device
                assert len(copies) == number * each
            copies.clear()


@given(shapes, st.integers(0, 1000), st.data())
def test_starting_within_an_epoch_gives_its_rest(sampler: EpochSampler, seed: int, data) -> None:
    start = data.draw(st.integers(0, sampler.steps))
    whole = dealt(sampler, seed, 3, 0, 1)
    assert dealt(sampler, seed, 3, 0, 1, start) == whole[start * sampler.accumulate:]


@given(st.integers(0, 2**62), st.integers(0, 10**6))
def test_orders_differ_between_epochs_and_repeat(seed: int, epoch: int) -> None:
    order = permutation(seed, epoch, 50)
    assert sorted(order.tolist()) == list(range(50))
    assert torch.equal(order, permutation(seed, epoch, 50))
    assert not torch.equal(order, permutation(seed, epoch + 1, 50))
    assert 0 <= mix(seed, epoch) < 2**63


def test_data_smaller_than_a_global_batch_is_refused() -> None:
    data = TensorDataset(torch.zeros(10, 2))
    with pytest.raises(UserError, match=r"16 examples.*only 10"):
        MapData(data, EpochSampler(10, 16, 2, 1), seed=0, first=0, count=1, workers=0,
                device=torch.device("cpu"), collate=default_collate, default_collate=True)


@pytest.mark.parametrize("x", [
    torch.arange(20.0).view(10, 2), torch.arange(20.0).view(2, 10).t(),
    torch.arange(120.0).view(10, 3, 2, 2).to(memory_format=torch.channels_last)])
def test_a_tensor_dataset_read_at_once_is_what_collate_makes(x: torch.Tensor) -> None:
    data = TensorDataset(x, torch.arange(10))
    indices = torch.tensor([3, 1, 7])
    fast = Reader(data, default_collate, True).read(indices)
    slow = Reader(data, default_collate, False).read(indices)
    assert type(fast) is type(slow)
    assert all(torch.equal(a, b) for a, b in zip(fast, slow, strict=True))
    assert [t.stride() for t in fast] == [t.stride() for t in slow]


class Batches(Dataset):
    """Gives whole batches; reading its examples one by one is an error."""

    def __len__(self) -> int:
        return 10

    def get_batch(self, indices):
        return "whole", indices.tolist()


def test_a_dataset_s_own_batches_and_a_task_s_own_collate_are_used() -> None:
    indices = torch.tensor([3, 1, 7])
    assert Reader(Batches(), default_collate, True).read(indices) == ("whole", [3, 1, 7])
    data = TensorDataset(torch.arange(20.0).view(10, 2), torch.arange(10))
    numbers = Reader(data, lambda examples: [int(n) for _, n in examples], False).read(indices)
    assert numbers == [3, 1, 7]


def test_random_augmentation_does_not_depend_on_the_number_of_workers(make) -> None:
    runs = [ranks.train(make(f"w{n}", {"noise": 0.5}, size=24, train={"workers": n}))
            for n in (0, 1, 3)]
    assert recorded(runs[0]) == recorded(runs[1]) == recorded(runs[2])
    assert len({loss for loss, _ in recorded(runs[0])}) > 5


class Epochs(Dataset):
    """Gives for each example: the epoch from `set_epoch`, random numbers, and the bytes of shared
    memory that this process has mapped."""

    def __init__(self, examples: int) -> None:
        self.examples, self.epoch = examples, -1

    def __len__(self) -> int:
        return self.examples

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, i: int):
        shared = 0
        for line in Path("/proc/self/maps").read_text().splitlines():
            if "/torch_" in line:
                low, high = line.split()[0].split("-")
                shared += int(high, 16) - int(low, 16)
        drawn = [torch.rand(()).item(), random.random(), np.random.rand()]
        return i, self.epoch, drawn, shared


def loaded(data, workers: int, epochs: list[tuple[int, int]], rank: int = 0, ranks: int = 1):
    """(numbers, epochs told, random numbers, shared bytes) of each batch."""
    made = MapData(data, EpochSampler(len(data), 8 * ranks, ranks, 1), seed=3, first=rank, count=1,
                   workers=workers, device=torch.device("cpu"), collate=list,
                   default_collate=False)
    return [[tuple(zip(*batch, strict=True)) for _, batch in
             zip(range(6), made.epoch(epoch, start), strict=False)] for epoch, start in epochs]


@pytest.mark.parametrize("wrap", [lambda d: d, lambda d: Subset(d, range(len(d))),
                                  lambda d: ConcatDataset([d]), lambda d: StackDataset(d)])
@pytest.mark.parametrize("workers", [0, 2])
def test_set_epoch_reaches_workers_that_live_over_epochs(workers: int, wrap) -> None:
    def told(batch) -> set[int]:
        return set(batch[1]) if len(batch) == 4 else {x[1] for x in batch[0]}
    for number, epoch in zip((0, 1, 5), loaded(wrap(Epochs(48)), workers, [(0, 0), (1, 0), (5, 0)]),
                             strict=True):
        assert [told(batch) for batch in epoch] == [{number}] * 6


def test_random_numbers_follow_from_epoch_and_position_alone() -> None:
    """Random numbers of a map-style dataset are the same for any number of workers, and if an epoch
    is resumed in its middle. They differ between batches, epochs and ranks."""
    before = (random.getstate(), torch.get_rng_state(), np.random.get_state()[1].tolist())
    whole = loaded(Epochs(48), 0, [(0, 0), (1, 0)])
    after = (random.getstate(), torch.get_rng_state(), np.random.get_state()[1].tolist())
    assert before[0] == after[0], "reading in the rank itself draws from the rank's generators"
    assert torch.equal(before[1], after[1])
    assert before[2] == after[2]
    drawn = [b[2] for epoch in whole for b in epoch]
    assert [[b[2] for b in e] for e in loaded(Epochs(48), 2, [(0, 0), (1, 0)])] == [
        drawn[:6], drawn[6:]]
    assert [b[2] for b in loaded(Epochs(48), 2, [(1, 2)])[0]] == drawn[8:]
    two = [[b[2] for e in loaded(Epochs(96), 2, [(0, 0), (1, 0)], rank, 2) for b in e]
           for rank in range(2)]
    for kind in range(3):  # torch, random, numpy
        numbers = [x[kind] for rank in two for b in rank for x in b]
        assert len(numbers) == 2 * 2 * 48
        assert len(set(numbers)) == len(numbers)


def test_the_epoch_s_order_does_not_travel_to_the_workers() -> None:
    """Otherwise each worker would map the whole order, 8 bytes for each example."""
    numbers, _, _, shared = loaded(Epochs(500_000), 2, [(0, 0)])[0][-1]
    assert max(shared) < 100_000
    assert len(numbers) == 8


def test_iterable_data_resumes_within_an_epoch(make) -> None:
    params = {"stream": True, "examples": 120}
    whole = ranks.train(make("whole", params, size=12, train={"epochs": 2}))
    broken = make("broken", {**params, "die_at": 14}, size=12,
                  train={"epochs": 2, "checkpoint_every": 3})
    with ranks.started(broken) as first:
        first.wait()
    ranks.train(broken, attempt=2)
    start = ranks.read(broken, 0, "schedule")[-1]["first_step"]
    assert start in (9, 12)  # the last save may not have been finished
    assert recorded(broken, 0, 2) == recorded(whole)[start:]


def test_too_small_a_dataset_ends_the_run_with_both_numbers(make) -> None:
    run = make("run", {"examples": 20}, world=2, size=24)
    ranks.train(run, expect=1)
    for rank in range(2):
        error = ranks.read(run, rank, "error")[-1]
        assert error["type"] == "UserError"
        assert "24" in error["message"]
        assert "20" in error["message"]
        assert error["traceback"] == ""


def test_what_a_dataset_draws_for_an_epoch_is_the_same_in_every_process() -> None:
    class Shuffles(list):
        def set_epoch(self, epoch: int) -> None:
            self.drawn = (random.random(), torch.rand(()).item())

    drawn = []
    for process in range(2):
        torch.manual_seed(process)
        random.seed(process)
        before = torch.get_rng_state(), random.getstate()
        reader = Reader(Shuffles([1]), lambda batch: batch, default_collate=False)
        for epoch in (0, 1, 1):
            reader.set_epoch(epoch)
            drawn.append(reader.data.drawn)
        assert torch.equal(torch.get_rng_state(), before[0])
        assert random.getstate() == before[1]
    assert drawn[:3] == drawn[3:]
    assert drawn[0] != drawn[1] == drawn[2]


class Pids(Dataset):
    """Examples that say which process has read them. Reading them one by one is an error."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> int:
        raise AssertionError("there is a way to read several at once")

    def __getitems__(self, numbers: list[int]) -> list[int]:
        return [os.getpid()] * len(numbers)


def test_a_datasets_own_way_to_read_several_examples_is_used() -> None:
    reader = Reader(Pids(), default_collate, default_collate=True)
    assert reader.read(torch.tensor([3, 1])).tolist() == [os.getpid()] * 2


def test_loader_workers_live_over_epochs_and_their_start_draws_nothing_here() -> None:
    data = MapData(Pids(), EpochSampler(8, 4, 1, 1), seed=1, first=0, count=1, workers=1,
                   device=torch.device("cpu"), collate=default_collate, default_collate=True)
    before = torch.get_rng_state()
    pids = {pid for epoch in range(2) for batch in data.epoch(epoch) for pid in batch.tolist()}
    assert torch.equal(torch.get_rng_state(), before)
    assert len(pids) == 1
    assert os.getpid() not in pids


def test_datasets_within_a_chain_hear_the_epoch() -> None:
    class Counts(IterableDataset):
        def __iter__(self):
            return iter(())

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    parts = [Counts(), Counts()]
    tell_epoch(ChainDataset(parts), 7)
    assert [part.epoch for part in parts] == [7, 7]
