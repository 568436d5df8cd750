"""Parameters of a kind that can't be compared: nothing is learned of them, and nothing fails."""

from __future__ import annotations

import torch

from gpu_engine.observe.optimizers import ByHand


def test_parameters_whose_memory_is_freed_are_left_alone() -> None:
    """As FSDP frees them between two uses."""
    weight = torch.nn.Parameter(torch.ones(8, 8))
    storage = weight.untyped_storage()
    hand = ByHand()
    for _ in range(3):
        storage.resize_(8 * 8 * 4)
        loss = (weight * 2).sum()
        loss.backward()
        storage.resize_(0)
        assert not hand.call(loss, 0)
    assert not hand.likely
