"""Random generators: seeding them for a rank, and their state as plain values."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

from gpu_engine.worker.data import mix, seed_all


def seed_model(seed: int) -> None:
    """Before the model is made: the same on every rank."""
    seed_all(mix(seed, 0x6D))


def seed_rank(seed: int, rank: int, step: int = 0) -> None:
    """Before training: each rank its own, so that dropout differs between ranks."""
    seed_all(mix(seed, 0x72, rank, step))


def capture(devices: list[torch.device]) -> dict[str, Any]:
    """The state of every generator that this rank's future depends on."""
    state: dict[str, Any] = {
        "python": random.getstate(),
        "torch": torch.get_rng_state(),
        "cuda": [torch.cuda.get_rng_state(d) for d in devices if d.type == "cuda"],
    }
    if "numpy" in sys.modules:
        kind = sys.modules["numpy"].random.get_state(legacy=False)
        state["numpy"] = {
            "bit_generator": str(kind["bit_generator"]),
            "key": [int(k) for k in kind["state"]["key"]], "pos": int(kind["state"]["pos"]),
            "has_gauss": int(kind["has_gauss"]), "gauss": float(kind["gauss"])}
    return state


def restore(state: dict[str, Any], devices: list[torch.device]) -> None:
    """Undo `capture`, on as many GPUs as there are in both."""
    version, inner, gauss = state["python"]
    random.setstate((version, tuple(inner), gauss))
    torch.set_rng_state(state["torch"])
    gpus = [d for d in devices if d.type == "cuda"]
    for device, one in zip(gpus, state["cuda"], strict=False):
        torch.cuda.set_rng_state(one, device)
    saved = state.get("numpy")
    if saved and "numpy" in sys.modules:
        numpy = sys.modules["numpy"]
        numpy.random.set_state({
            "bit_generator": saved["bit_generator"], "has_gauss": saved["has_gauss"],
            "gauss": saved["gauss"],
            "state": {"key": numpy.array(saved["key"], dtype=numpy.uint32), "pos": saved["pos"]}})
