"""What is promised about GPUs in the order of calls, on a `torch.cuda` that stands in for one."""

from __future__ import annotations

import pytest
import torch

from gpu_engine.training import checkpoint, rng

CUDA = [torch.device("cuda", i) for i in range(3)]


# --- generators --------------------------------------------------------------------------------

@pytest.fixture
def generators(monkeypatch):
    """One generator for each of three GPUs, which `torch.cuda` reads and sets."""
    each = [torch.Generator().manual_seed(i) for i in range(3)]
    monkeypatch.setattr(torch.cuda, "default_generators", tuple(each))
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda d: each[d.index or 0].get_state())
    monkeypatch.setattr(torch.cuda, "set_rng_state",
                        lambda state, d: each[d.index or 0].set_state(state))
    return each


def draws(generators: list[torch.Generator]) -> list[float]:
    return [torch.rand((), generator=g).item() for g in generators]


def test_the_generator_of_each_gpu_is_saved_and_restored(generators):
    state = rng.capture(CUDA)
    first = draws(generators)
    assert len(set(first)) == 3
    assert draws(generators) != first
    rng.restore(state, CUDA)
    assert draws(generators) == first


def test_only_this_ranks_gpus_are_saved(generators):
    mine = CUDA[2:]
    state, other = rng.capture(mine), generators[0].get_state()
    assert len(state["cuda"]) == 1
    first = draws(generators[2:])
    rng.restore(state, mine)
    assert draws(generators[2:]) == first
    assert torch.equal(generators[0].get_state(), other)


def test_the_generator_of_each_gpu_is_seeded_for_a_chunk_and_put_back_after_it(generators):
    before = [g.get_state() for g in generators]
    seen = []
    for _ in range(2):
        with rng.untouched(CUDA[:2]):
            rng.seed_here(7, CUDA[:2])
            seen.append(draws(generators[:2]))
    assert seen[0] == seen[1]
    assert seen[0][0] == seen[0][1]  # both were seeded, with the same seed
    assert all(torch.equal(g.get_state(), b) for g, b in zip(generators, before, strict=True))


# --- weights -----------------------------------------------------------------------------------

class There(torch.Tensor):
    """A tensor that says that it lies on a GPU."""

    device = CUDA[1]


def test_weights_on_every_device_are_checked():
    good, bad = torch.ones(3), torch.tensor([1.0, float("inf")])
    there = [value.as_subclass(There) for value in (good, bad)]
    assert checkpoint.nonfinite([("a", good), ("b", there[0])]) is None
    assert checkpoint.nonfinite([("a", good), ("b", there[0]), ("c", there[1])]) == "c"
