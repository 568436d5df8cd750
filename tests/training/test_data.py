"""A step uses the same examples in every mode; an epoch uses each once, except the last few."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

from gpu_engine import Task
from gpu_engine.common.errors import UserError
from gpu_engine.training.data import (
    EpochSampler,
    MapData,
    Reader,
    Request,
    mix,
    move,
    permutation,
)

CPU = torch.device("cpu")


class Lists(Task):
    def collate(self, examples):
        return list(examples)


shapes = st.builds(
    lambda replicas, accumulate, per_gpu, steps, rest: EpochSampler(
        replicas * accumulate * per_gpu * steps + rest % (replicas * accumulate * per_gpu),
        replicas * accumulate * per_gpu, replicas, accumulate),
    st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.integers(0, 99))


def dealt(sampler: EpochSampler, seed: int, epoch: int, mine: range, start=0):
    return [(seed, list(indices)) for seed, _, indices in replace(
        sampler, seed=seed, mine=mine, epoch=epoch, start=start)]


@given(shapes, st.integers(0, 2**40), st.integers(0, 1000))
def test_ranks_together_see_what_one_process_sees(sampler, seed, epoch):
    alone = EpochSampler(sampler.examples, sampler.global_size, 1, 1)
    whole = [set(indices) for _, indices in dealt(alone, seed, epoch, range(1))]
    each = [dealt(sampler, seed, epoch, range(r, r + 1)) for r in range(sampler.replicas)]
    assert len(whole) == sampler.steps
    for step, expected in enumerate(whole):
        first, last = (s * sampler.accumulate for s in (step, step + 1))
        part = [i for r in each for _, b in r[first:last] for i in b]
        assert len(part) == sampler.global_size
        assert set(part) == expected
    seen = [i for r in each for _, b in r for i in b]
    assert len(seen) == len(set(seen)) == sampler.steps * sampler.global_size
    # DataParallel scatters a batch in order, which gives the same shares as DDP's ranks have.
    together = dealt(sampler, seed, epoch, range(sampler.replicas))
    for micro, (_, batch) in enumerate(together):
        assert batch == [i for r in each for i in r[micro][1]]


@pytest.mark.parametrize("workers", [0, 1])
def test_before_each_copy_to_the_device_it_is_said(workers):
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
            made = MapData(data, Task(), sampler, workers=workers, device=torch.device(device),
                           copies=lambda: copies.append(None))
            for number, batch in enumerate(made.epoch(0), 1):
                tensor = batch[0] if isinstance(batch, list) else batch
                assert tensor.device.type == device
                assert len(copies) == number * each
            copies.clear()


def test_a_batch_of_any_shape_is_moved():
    one = torch.ones(2)
    moved = move({"p": Request(1, one, [one, "x"]), "t": (one, 3)}, torch.device("meta"))
    (_, first, (second, text)), (third, number) = moved["p"], moved["t"]
    assert {t.device.type for t in (first, second, third)} == {"meta"}
    assert (type(moved["p"]), text, number) == (Request, "x", 3)


@given(shapes, st.integers(0, 1000), st.data())
def test_starting_within_an_epoch_gives_its_rest(sampler, seed, data):
    start = data.draw(st.integers(0, sampler.steps))
    whole = dealt(sampler, seed, 3, range(1))
    assert dealt(sampler, seed, 3, range(1), start) == whole[start * sampler.accumulate:]


@given(st.integers(0, 2**62), st.integers(0, 10**6))
def test_orders_differ_between_epochs_and_repeat(seed, epoch):
    order = permutation(seed, epoch, 50)
    assert sorted(order.tolist()) == list(range(50))
    assert torch.equal(order, permutation(seed, epoch, 50))
    assert not torch.equal(order, permutation(seed, epoch + 1, 50))
    assert 0 <= mix(seed, epoch) < 2**63


def test_data_smaller_than_a_global_batch_is_refused():
    data = TensorDataset(torch.zeros(10, 2))
    with pytest.raises(UserError, match=r"16 examples.*only 10"):
        MapData(data, Task(), EpochSampler(10, 16, 2, 1), workers=0, device=CPU)


@pytest.mark.parametrize("x", [
    torch.arange(20.0).view(10, 2), torch.arange(20.0).view(2, 10).t(),
    torch.arange(120.0).view(10, 3, 2, 2).to(memory_format=torch.channels_last)])
def test_a_tensor_dataset_read_at_once_is_what_collate_makes(x):
    data = TensorDataset(x, torch.arange(10))
    fast = Reader(data, Task()).__getitems__(Request(0, None, [3, 1, 7]))
    slow = default_collate([data[i] for i in (3, 1, 7)])
    assert type(fast) is type(slow)
    assert all(torch.equal(a, b) for a, b in zip(fast, slow, strict=True))
    assert [t.stride() for t in fast] == [t.stride() for t in slow]


class Batches(Dataset):
    """Gives whole batches; reading its examples one by one is an error."""

    def __len__(self) -> int:
        return 10

    def get_batch(self, indices):
        return "whole", indices.tolist()


def test_a_dataset_s_own_batches_and_a_task_s_own_collate_are_used():
    request = Request(0, None, [3, 1, 7])
    assert Reader(Batches(), Task()).__getitems__(request) == ("whole", [3, 1, 7])
    assert Reader(TensorDataset(torch.arange(10)), Lists()).__getitems__(request) == [
        (torch.tensor(i),) for i in (3, 1, 7)]
    assert Reader(Pids(), Task()).__getitems__(request).tolist() == [os.getpid()] * 3


class Epochs(Dataset):
    """Gives for each example: the epoch from `set_epoch`, random numbers, and the bytes of shared
    memory that this process has mapped."""

    def __init__(self, examples: int):
        self.examples, self.epoch = examples, -1

    def __len__(self) -> int:
        return self.examples

    def set_epoch(self, epoch: int):
        self.epoch = epoch

    def __getitem__(self, i: int):
        shared = 0
        for line in Path("/proc/self/maps").read_text().splitlines():
            if "/torch_" in line:
                low, high = line.split()[0].split("-")
                shared += int(high, 16) - int(low, 16)
        drawn = [torch.rand(()).item(), random.random(), np.random.rand()]
        return i, self.epoch, drawn, shared


def loaded(data, workers: int, epochs: list[tuple[int, int]], rank=0, ranks=1):
    """(numbers, epochs told, random numbers, shared bytes) of each batch."""
    sampler = EpochSampler(len(data), 8 * ranks, ranks, 1, 3, range(rank, rank + 1))
    made = MapData(data, Lists(), sampler, workers=workers, device=CPU)
    return [[tuple(zip(*batch, strict=True)) for _, batch in
             zip(range(6), made.epoch(epoch, start), strict=False)] for epoch, start in epochs]


@pytest.mark.parametrize("wrap", [lambda d: d, lambda d: Subset(d, range(len(d)))])
@pytest.mark.parametrize("workers", [0, 2])
def test_set_epoch_reaches_workers_that_live_over_epochs(workers, wrap):
    for number, epoch in zip((0, 1, 5), loaded(wrap(Epochs(48)), workers, [(0, 0), (1, 0), (5, 0)]),
                             strict=True):
        assert [set(batch[1]) for batch in epoch] == [{number}] * 6


def test_random_numbers_follow_from_epoch_and_position_alone():
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


def test_the_epoch_s_order_does_not_travel_to_the_workers():
    """Otherwise each worker would map the whole order, 8 bytes for each example."""
    numbers, _, _, shared = loaded(Epochs(500_000), 2, [(0, 0)])[0][-1]
    assert max(shared) < 100_000
    assert len(numbers) == 8


def test_what_a_dataset_draws_for_an_epoch_is_the_same_in_every_process():
    class Shuffles(list):
        def set_epoch(self, epoch: int):
            self.drawn = (random.random(), torch.rand(()).item())

    drawn = []
    for process in range(2):
        torch.manual_seed(process)
        random.seed(process)
        before = torch.get_rng_state(), random.getstate()
        data = Shuffles([1])
        reader = Reader(data, Lists())
        for epoch in (0, 1, 1):
            reader.__getitems__(Request(0, epoch, [0]))
            drawn.append(data.drawn)
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


def test_loader_workers_live_over_epochs_and_their_start_draws_nothing_here():
    data = MapData(Pids(), Task(), EpochSampler(8, 4, 1, 1), workers=1, device=CPU)
    before = torch.get_rng_state()
    pids = {pid for epoch in range(2) for batch in data.epoch(epoch) for pid in batch.tolist()}
    assert torch.equal(torch.get_rng_state(), before)
    assert len(pids) == 1
    assert os.getpid() not in pids
