"""Which examples a step sees: the same in every mode, each once, none lost but the last few."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset, default_collate

from gpu_engine.errors import UserError
from gpu_engine.worker.data import Deal, MapData, Reader, StepSampler, mix, permutation

from . import ranks
from .conftest import recorded

shapes = st.builds(
    lambda replicas, accumulate, per_gpu, steps, rest: Deal(
        replicas * accumulate * per_gpu * steps + rest % (replicas * accumulate * per_gpu),
        replicas * accumulate * per_gpu, replicas, accumulate),
    st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.integers(0, 99))


def dealt(deal: Deal, seed: int, epoch: int, first: int, count: int, start: int = 0):
    sampler = StepSampler(deal, seed, first, count)
    sampler.set_epoch(epoch, start)
    batches = [(tag, indices.tolist()) for tag, indices in sampler]
    assert len(batches) == len(sampler)
    return batches


@given(shapes, st.integers(0, 2**40), st.integers(0, 1000))
def test_ranks_together_see_what_one_process_sees(deal: Deal, seed: int, epoch: int) -> None:
    alone = Deal(deal.examples, deal.global_size, 1, 1)
    whole = [set(indices) for _, indices in dealt(alone, seed, epoch, 0, 1)]
    each = [dealt(deal, seed, epoch, r, 1) for r in range(deal.replicas)]
    assert len(whole) == deal.steps
    for step, expected in enumerate(whole):
        part = [i for r in each for _, b in r[step * deal.accumulate:(step + 1) * deal.accumulate]
                for i in b]
        assert len(part) == deal.global_size
        assert set(part) == expected
    seen = [i for r in each for _, b in r for i in b]
    assert len(seen) == len(set(seen)) == deal.examples - deal.dropped
    # DataParallel scatters one process's batch in order: the same shares as DDP's ranks.
    together = dealt(deal, seed, epoch, 0, deal.replicas)
    for micro, (_, batch) in enumerate(together):
        assert batch == [i for r in each for i in r[micro][1]]


@given(shapes, st.integers(0, 1000), st.data())
def test_starting_within_an_epoch_gives_its_rest(deal: Deal, seed: int, data) -> None:
    start = data.draw(st.integers(0, deal.steps))
    whole = dealt(deal, seed, 3, 0, 1)
    assert dealt(deal, seed, 3, 0, 1, start) == whole[start * deal.accumulate:]


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
        MapData(data, Deal(10, 16, 2, 1), seed=0, first=0, count=1, workers=0,
                device=torch.device("cpu"), collate=default_collate, default_collate=True)


def test_a_tensor_dataset_read_at_once_is_what_collate_makes() -> None:
    data = TensorDataset(torch.arange(20.0).view(10, 2), torch.arange(10))
    indices = torch.tensor([3, 1, 7])
    fast = Reader(data, default_collate, True).read(indices)
    slow = Reader(data, default_collate, False).read(indices)
    assert type(fast) is type(slow)
    assert all(torch.equal(a, b) for a, b in zip(fast, slow, strict=True))


def test_random_augmentation_does_not_depend_on_the_number_of_workers(make) -> None:
    runs = [ranks.train(make(f"w{n}", {"noise": 0.5}, size=24, train={"workers": n}))
            for n in (1, 3)]
    assert recorded(runs[0]) == recorded(runs[1])
    assert len({loss for loss, _ in recorded(runs[0])}) > 5


@pytest.mark.parametrize("workers", [0, 2])
def test_iterable_data_ends_for_all_ranks_together(make, workers: int) -> None:
    """94 examples for 3 ranks in batches of 4: 8, 7 and 7 whole ones, with two workers a rank
    8, 8 and 6."""
    run = make("run", {"stream": True, "examples": 94}, world=3, size=12,
               train={"epochs": 2, "workers": workers})
    ranks.train(run)
    seen = [[n for _, b in recorded(run, r) for n in b] for r in range(3)]
    steps = {len(recorded(run, r)) for r in range(3)}
    assert steps == {2 * (6 if workers else 7)}
    for part in seen:
        half = len(part) // 2
        assert part[:half] == part[half:]  # both epochs
    first = [n for part in seen for n in part[:len(part) // 2]]
    assert len(first) == len(set(first))
    ends = {ranks.read(run, r, "end")[-1]["steps"] for r in range(3)}
    assert len(ends) == 1


def test_iterable_data_resumes_within_an_epoch(make) -> None:
    params = {"stream": True, "examples": 120}
    whole = ranks.train(make("whole", params, size=12, train={"epochs": 2}))
    broken = make("broken", {**params, "die_at": 14}, size=12,
                  train={"epochs": 2, "checkpoint_every": 3})
    with ranks.started(broken) as first:
        first.wait()
    ranks.train(broken, attempt=2)
    assert recorded(broken, 0, 2) == recorded(whole)[12:]


def test_too_small_a_dataset_ends_the_run_with_both_numbers(make) -> None:
    run = make("run", {"examples": 20}, world=2, size=24)
    ranks.train(run, expect=1)
    for rank in range(2):
        error = ranks.read(run, rank, "error")[-1]
        assert error["type"] == "UserError"
        assert "24" in error["message"]
        assert "20" in error["message"]
        assert error["traceback"] == ""
