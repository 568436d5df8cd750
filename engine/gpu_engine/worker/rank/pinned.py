"""Numbers on their way from a GPU, without waiting for it.

A number is copied into pinned host memory, after the kernels that compute it. Another thread later
looks only at that memory and makes no CUDA call, as CUDA forbids those while a CUDA graph is being
captured; for the same reason there are no events.
"""

from __future__ import annotations

import ctypes
import struct

import torch

EMPTY = 0x7FF4_DEAD_BEEF_0001
"""The bits of an empty slot: a NaN that no conversion to double produces."""


class Ring:
    """A ring in pinned memory. One thread puts numbers in, one takes them out."""

    def __init__(self, slots: int = 4096, *, pin: bool = True) -> None:
        """`slots`: how many numbers may be on their way at once."""
        with torch.inference_mode(False):
            # All arguments are given, as a script may have set other defaults.
            bits = torch.full((slots,), EMPTY, dtype=torch.int64, device="cpu")
            self._values = (bits.pin_memory() if pin else bits).view(torch.float64)
        # The other thread reads this memory without calling torch.
        self.bits = (ctypes.c_int64 * slots).from_address(self._values.data_ptr())
        self._slots = slots
        self._put = self._taken = 0

    def put(self, value: torch.Tensor) -> int | None:
        """Start to copy `value`, of shape (). Returns its slot, or None if the ring is full: losing
        a value is better than holding up a step."""
        if self._put - self._taken >= self._slots:
            return None
        slot = self._put % self._slots
        self._values[slot].copy_(value, non_blocking=True)
        self._put += 1
        return slot

    def arrived(self, slot: int) -> bool:
        """Whether the number for this slot has arrived."""
        return self.bits[slot] != EMPTY

    def take(self, slot: int) -> float:
        """The number in this slot, which must have arrived. This frees the slot."""
        value = struct.unpack("d", struct.pack("q", self.bits[slot]))[0]
        self.bits[slot] = EMPTY
        self._taken += 1
        return value
