"""Which parameters an optimizer updates."""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer


def trained(optimizer: Optimizer) -> list[nn.Parameter]:
    """The parameters that `optimizer` updates now. A task may add some while it trains, as gradual
    unfreezing does, so this is asked for in each step that needs it."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
