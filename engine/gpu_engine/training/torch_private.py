"""What training needs of torch that has no public name. Each says what it buys, and what happens
where a torch lacks it."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from torch import Tensor, nn


def multiply(tensors: list[Tensor], factor: Tensor) -> None:
    """Multiply tensors of one device and type by `factor` (shape ()), in place. All in a few kernel
    launches; where that is gone, in one launch for each."""
    together: Any = getattr(torch, "_foreach_mul_", None)
    if together is not None:
        together(tensors, factor)
        return
    for tensor in tensors:
        tensor.mul_(factor)


def left_out_by_ddp(model: nn.Module) -> Container[str]:
    """The names of parameters and buffers that DDP does not keep equal on all ranks, by the mark
    that its own `_set_params_and_buffers_to_ignore_for_model` makes. Where DDP reads another mark,
    none is left out: such a buffer is rank 0's in an evaluation."""
    return getattr(model, "_ddp_params_and_buffers_to_ignore", ())
