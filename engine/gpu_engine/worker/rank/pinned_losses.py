"""Copies losses from a GPU to the host without waiting for the GPU."""

from __future__ import annotations

import torch


class PinnedLosses:
    """A ring of losses in pinned host memory. Each slot has a CUDA event that tells when its loss
    has arrived; read before that, the slot holds garbage."""

    def __init__(self, slots: int = 4096) -> None:
        """`slots`: how many losses may be on their way at once."""
        self._ring = torch.empty(slots, dtype=torch.float64, pin_memory=True)
        self._events = [torch.cuda.Event() for _ in range(slots)]
        self._slots = slots
        self._put = 0
        self._taken = 0

    def put(self, loss: torch.Tensor) -> int | None:
        """Start to copy `loss`, of shape (). Returns the slot to read it from, or None if the ring
        is full: losing a loss is better than holding up a step."""
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
        """The loss in this slot, which must have arrived. This frees the slot."""
        self._taken += 1
        return self._ring[slot].item()

    def wait(self) -> None:
        """Wait until all losses have arrived."""
        if self._put > self._taken:
            self._events[(self._put - 1) % self._slots].synchronize()
