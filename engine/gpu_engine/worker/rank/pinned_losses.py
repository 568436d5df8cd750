"""Losses on their way from a GPU to the record, without waiting for the GPU."""

from __future__ import annotations

import torch


class PinnedLosses:
    """A ring of losses in pinned host memory, each with the CUDA event that says that it has
    arrived. Read earlier, a slot would give garbage."""

    def __init__(self, slots: int = 4096) -> None:
        """Room for `slots` losses under way at once."""
        self._ring = torch.empty(slots, dtype=torch.float64, pin_memory=True)
        self._events = [torch.cuda.Event() for _ in range(slots)]
        self._slots = slots
        self._put = 0
        self._taken = 0

    def put(self, loss: torch.Tensor) -> int | None:
        """Start to copy `loss`, of shape (); the slot to read it from. None where the ring is
        full: a loss that is not told is better than a step that waits."""
        if self._put - self._taken >= self._slots:
            return None
        slot = self._put % self._slots
        self._ring[slot].copy_(loss, non_blocking=True)
        self._events[slot].record()
        self._put += 1
        return slot

    def ready(self, slot: int) -> bool:
        """Whether the loss of this slot has arrived."""
        return self._events[slot].query()

    def take(self, slot: int) -> float:
        """The loss of this slot, which has arrived, and the slot is free again."""
        self._taken += 1
        return self._ring[slot].item()

    def wait(self) -> None:
        """Wait until all losses have arrived."""
        if self._put > self._taken:
            self._events[(self._put - 1) % self._slots].synchronize()
