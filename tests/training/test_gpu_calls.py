"""What is promised about GPUs in the order of calls, on a `torch.cuda` that stands in for one.

A GPU is behind the host: what was asked of it is done when somebody waits for it. So the stand-in
carries a copy out only then, and who does not wait reads what was there before.
"""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace

import pytest
import torch

from gpu_engine.training import checkpoint_state, rng
from gpu_engine.training.checkpoint_state import Copier

CUDA = [torch.device("cuda", i) for i in range(3)]


# --- a copy of a checkpoint --------------------------------------------------------------------

class OnGpu:
    """A storage on a GPU, and the tensor of bytes that is made of it."""

    def __init__(self, device: torch.device, storage: torch.UntypedStorage) -> None:
        self.device, self.storage = device, storage

    def nbytes(self) -> int:
        return self.storage.nbytes()

    def set_(self, storage: OnGpu) -> OnGpu:
        return storage


class InHostMemory:
    """A tensor of bytes to which a GPU copies: at once, or when it is waited for."""

    def __init__(self, gpus: Gpus, tensor: torch.Tensor) -> None:
        self._gpus, self._tensor = gpus, tensor

    def copy_(self, source: OnGpu, *, non_blocking: bool) -> None:
        def copy() -> None:
            self._tensor.copy_(torch.empty(0, dtype=torch.uint8).set_(source.storage))

        copy() if not non_blocking else self._gpus.waiting.append((source.device, copy))

    def untyped_storage(self) -> torch.UntypedStorage:
        return self._tensor.untyped_storage()


class Gpus:
    """Torch, for `Copier`, as if there were GPUs."""

    def __init__(self) -> None:
        self.waiting, self.locks = [], []
        self.set_device = {}
        self.cuda = SimpleNamespace(synchronize=self.synchronize, cudart=lambda: self,
                                    set_device=lambda gpu: self.set_device.update(
                                        {threading.get_ident(): gpu}))

    def __getattr__(self, name: str) -> object:
        return getattr(torch, name)

    def empty(self, *size: int, dtype: torch.dtype, device: torch.device | None = None) -> object:
        if device is None:
            return torch.empty(*size, dtype=dtype)
        return OnGpu(device, torch.UntypedStorage(0))

    def frombuffer(self, memory: object, **how: object) -> InHostMemory:
        return InHostMemory(self, torch.frombuffer(memory, **how))

    def synchronize(self, device: torch.device) -> None:
        for where, copy in self.waiting:
            if where == device:
                copy()
        self.waiting = [(where, copy) for where, copy in self.waiting if where != device]

    def cudaHostRegister(self, address: int, size: int, flags: int) -> None:
        self.locks.append(("lock", self.set_device[threading.get_ident()], address, size))

    def cudaHostUnregister(self, address: int) -> None:
        self.locks.append(("unlock", self.set_device[threading.get_ident()], address))


@pytest.fixture
def gpus(monkeypatch) -> Gpus:
    """The state's tensors count as lying on cuda:0, cuda:1 and cuda:2 in turn."""
    gpus, storages = Gpus(), checkpoint_state.storages
    monkeypatch.setattr(checkpoint_state, "torch", gpus)
    monkeypatch.setattr(checkpoint_state, "storages", lambda state: {
        address: OnGpu(CUDA[i % 3], storage)
        for i, (address, storage) in enumerate(storages(state).items())})
    return gpus


def test_a_copy_has_arrived_from_every_gpu_before_it_is_written(gpus: Gpus) -> None:
    state = {str(i): torch.full((100 + i,), float(i + 1)) for i in range(7)}
    copier = Copier(CUDA[1])
    for _ in range(2):  # the second copy goes into the same memory
        copy = copier.copy(state)
        assert gpus.waiting == []
        assert all(torch.equal(copy[key], state[key]) for key in state)
        for value in state.values():
            value.neg_()
        assert not any(torch.equal(copy[key], state[key]) for key in state)
    assert [(what, gpu) for what, gpu, *_ in gpus.locks] == [("lock", CUDA[1])]


def test_memory_is_unlocked_where_it_was_locked_before_it_is_given_back(gpus: Gpus) -> None:
    copier = Copier(CUDA[2])
    copier.copy({"small": torch.ones(10)})
    small = ctypes.addressof(ctypes.c_char.from_buffer(copier._kept))
    copier.copy({"large": torch.ones(10_000)})
    large = ctypes.addressof(ctypes.c_char.from_buffer(copier._kept))
    assert gpus.locks == [("lock", CUDA[2], small, 64), ("unlock", CUDA[2], small),
                          ("lock", CUDA[2], large, 40_000)]
    # An error that CUDA keeps for the thread that caused it is none of training's.
    assert threading.get_ident() not in gpus.set_device


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


# --- weights -----------------------------------------------------------------------------------

class There(torch.Tensor):
    """A tensor that says that it lies on a GPU."""

    device = CUDA[1]


def test_weights_on_every_device_are_checked() -> None:
    good, bad = torch.ones(3), torch.tensor([1.0, float("inf")])
    there = [value.as_subclass(There) for value in (good, bad)]
    assert checkpoint_state.nonfinite([("a", good), ("b", there[0])]) is None
    assert checkpoint_state.nonfinite([("a", good), ("b", there[0]), ("c", there[1])]) == "c"
