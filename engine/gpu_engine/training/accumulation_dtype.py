"""Numbers of 64 bits, on devices that have none: Apple's GPU, and several of Intel's."""

from __future__ import annotations

import torch
from torch import Tensor

_NARROW = ("mps", "xpu")


def widest(device: torch.device) -> torch.dtype:
    """The widest floating-point type on a device. float32 counts exactly to 2**24."""
    return torch.float32 if device.type in _NARROW else torch.float64


def wide(value: Tensor) -> Tensor:
    """`value` in float64; on the host, if its device has no such numbers."""
    return (value.cpu() if value.device.type in _NARROW else value).double()
