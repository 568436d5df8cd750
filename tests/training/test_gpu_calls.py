"""What is promised about GPUs in the order of calls, on a `torch.cuda` that stands in for one."""

from __future__ import annotations

import pytest
import torch

from gpu_engine.training import checkpoint, rng
from gpu_engine.worker.rank.recorder import PinnedLosses

CUDA = [torch.device("cuda", i) for i in range(3)]


# --- generators --------------------------------------------------------------------------------

@pytest.fixture
def generators(monkeypatch) -> list[torch.Generator]:
    """One generator for each of three GPUs, which `torch.cuda` reads and sets."""
    each = [torch.Generator().manual_seed(i) for i in range(3)]
    monkeypatch.setattr(torch.cuda, "default_generators", tuple(each))
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda d: each[d.index or 0].get_state())
    monkeypatch.setattr(torch.cuda, "set_rng_state",
                        lambda state, d: each[d.index or 0].set_state(state))
    return each


def draws(generators: list[torch.Generator]) -> list[float]:
    return [torch.rand((), generator=g).item() for g in generators]


def test_the_generator_of_each_gpu_is_saved_and_restored(generators) -> None:
    state = rng.capture(CUDA)
    first = draws(generators)
    assert len(set(first)) == 3
    assert draws(generators) != first
    rng.restore(state, CUDA)
    assert draws(generators) == first


def test_only_this_ranks_gpus_are_saved(generators) -> None:
    mine = CUDA[2:]
    state, other = rng.capture(mine), generators[0].get_state()
    assert len(state["cuda"]) == 1
    first = draws(generators[2:])
    rng.restore(state, mine)
    assert draws(generators[2:]) == first
    assert torch.equal(generators[0].get_state(), other)


def test_the_generator_of_each_gpu_is_seeded_for_a_chunk_and_put_back_after_it(generators) -> None:
    before = [g.get_state() for g in generators]
    seen = []
    for _ in range(2):
        with rng.untouched(CUDA[:2]):
            rng.seed_here(7, CUDA[:2])
            seen.append(draws(generators[:2]))
    assert seen[0] == seen[1]
    assert seen[0][0] == seen[0][1]  # both were seeded, with the same seed
    assert all(torch.equal(g.get_state(), b) for g, b in zip(generators, before, strict=True))


# --- losses ------------------------------------------------------------------------------------

class Stream:
    """What a GPU does one after another. Nothing is done before somebody waits for it."""

    def __init__(self) -> None:
        self.asked = []

    def until(self, what: object) -> None:
        while what in self.asked:
            done = self.asked.pop(0)
            if callable(done):
                done()


class Slot:
    def __init__(self, stream: Stream, values: list[float], at: int) -> None:
        self._stream, self._values, self._at = stream, values, at

    def copy_(self, loss: torch.Tensor, *, non_blocking: bool) -> None:
        assert non_blocking
        self._stream.asked.append(lambda: self._values.__setitem__(self._at, loss.item()))

    def item(self) -> float:
        return self._values[self._at]


class Ring:
    def __init__(self, stream: Stream, size: int) -> None:
        self._stream, self._values = stream, [float("nan")] * size

    def __getitem__(self, slot: int) -> Slot:
        return Slot(self._stream, self._values, slot)


class Event:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def record(self) -> None:
        self._stream.asked.append(self)

    def query(self) -> bool:
        return self not in self._stream.asked

    def synchronize(self) -> None:
        self._stream.until(self)


@pytest.fixture
def losses(monkeypatch) -> PinnedLosses:
    stream = Stream()
    monkeypatch.setattr(torch, "empty", lambda size, **how: Ring(stream, size))
    monkeypatch.setattr(torch.cuda, "Event", lambda: Event(stream))
    return PinnedLosses(slots=3)


def test_a_loss_is_there_once_its_event_has_passed(losses: PinnedLosses) -> None:
    for turn in range(3):
        slots = [losses.put(torch.tensor(10.0 * turn + i)) for i in range(3)]
        assert losses.put(torch.tensor(99.0)) is None  # the ring is full
        assert not any(losses.ready(slot) for slot in slots)
        losses.wait()
        assert all(losses.ready(slot) for slot in slots)
        assert [losses.take(slot) for slot in slots] == [10.0 * turn + i for i in range(3)]
        losses.wait()  # with nothing under way


# --- weights -----------------------------------------------------------------------------------

class There(torch.Tensor):
    """A tensor that says that it lies on a GPU."""

    device = CUDA[1]


def test_weights_on_every_device_are_checked() -> None:
    good, bad = torch.ones(3), torch.tensor([1.0, float("inf")])
    there = [value.as_subclass(There) for value in (good, bad)]
    assert checkpoint.nonfinite([("a", good), ("b", there[0])]) is None
    assert checkpoint.nonfinite([("a", good), ("b", there[0]), ("c", there[1])]) == "c"
