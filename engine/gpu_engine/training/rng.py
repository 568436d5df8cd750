"""Random generators: seeds for ranks and for reading data, and their state in checkpoints."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch


def mix(*numbers: int) -> int:
    """One 63-bit seed from several numbers (splitmix64's finaliser, over each number in turn)."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = (state ^ number) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state >> 1


def seed_all(seed: int) -> None:
    """Seed the global generators of Python, torch with its GPUs and, if it is imported, numpy."""
    torch.manual_seed(seed)
    seed_host(seed)


def seed_host(seed: int) -> None:
    """As `seed_all`, but not on GPUs. Reading data uses only these generators."""
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2 ** 32)


def seed_here(seed: int, devices: list[torch.device]) -> None:
    """Seed the generators of the host and of these devices, and no others."""
    seed_host(seed)
    for device in devices:
        if device.type == "cuda":
            torch.cuda.default_generators[device.index or 0].manual_seed(seed)


def seed_model(seed: int) -> None:
    """Seed the generators before the model is made, the same on every rank."""
    seed_all(mix(seed, 0x6D))


def seed_data(seed: int, held_out: bool) -> None:
    """Seed the generators before the training data or the `held_out` data is made, the same on
    every rank, whatever the model has drawn."""
    seed_all(mix(seed, 0x64, held_out))


def seed_rank(seed: int, rank: int, step: int) -> None:
    """Seed the generators before training, differently on each rank, so that dropout differs."""
    seed_all(mix(seed, 0x72, rank, step))


_NUMPY = ("bit_generator", "key", "pos", "has_gauss", "gauss")
"""The parts of numpy's state, in its order, by their names in a checkpoint."""


def capture(devices: Sequence[torch.device] = ()) -> dict[str, Any]:
    """The state of the generators of the host and of these devices, as tensors and plain values."""
    state = {"python": random.getstate(), "torch": torch.get_rng_state(),
             "cuda": [torch.cuda.get_rng_state(d) for d in devices if d.type == "cuda"]}
    if "numpy" in sys.modules:
        kind, key, *rest = sys.modules["numpy"].random.get_state()
        state["numpy"] = dict(zip(_NUMPY, (kind, key.tolist(), *rest)))
    return state


def restore(state: dict[str, Any], devices: Sequence[torch.device] = ()) -> None:
    """Restore what `capture` returned, for the GPUs that exist both in it and here."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    for device, gpu in zip([d for d in devices if d.type == "cuda"], state["cuda"]):
        torch.cuda.set_rng_state(gpu, device)
    if "numpy" in state and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(tuple(state["numpy"][name] for name in _NUMPY))


@contextmanager
def untouched(devices: list[torch.device]) -> Iterator[None]:
    """Restore the generators of the host and of these devices at the end of the context."""
    before = capture(devices)
    try:
        yield
    finally:
        restore(before, devices)


class OwnRandomness:
    """Gives a piece of work on the host its own random numbers.

    At the first `with`, the global generators of Python, torch (CPU) and numpy are seeded; at each
    later one they go on where the last one ended. Afterwards they are as they were before. It
    takes a fraction of a millisecond, mostly for numpy's state.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._own: dict[str, Any] | None = None

    def reseed(self, seed: int) -> None:
        """Begin anew with another seed at the next `with`."""
        self._seed, self._own = seed, None

    def __enter__(self) -> None:
        self._outside = capture()
        if self._own is None:
            seed_host(self._seed)
        else:
            restore(self._own)

    def __exit__(self, *exc: object) -> None:
        self._own = capture()
        restore(self._outside)
