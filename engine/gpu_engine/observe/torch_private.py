"""What the observer needs of torch that has no public name. Each says what it buys, and what
happens where a torch lacks it."""

from __future__ import annotations

import contextlib
from typing import Any

import torch


def operations_of(group: Any) -> int:
    """How many collective operations a process group has begun. It tells ranks that made a group
    and then train apart, which nothing public does. Where it is gone, any error: nothing is told
    then."""
    return group._get_sequence_number_for_group()


def no_modes(tensor: Any) -> Any:
    """A context in which what we ask of this tensor is not seen by a TorchDispatchMode of the
    script's, such as one that counts operations. It is seen where torch lacks it, and for a tensor
    of a subclass, which needs the same mechanism for itself."""
    return _GUARD() if type(tensor) in _PLAIN else contextlib.nullcontext()


_GUARD = getattr(torch._C, "_DisableTorchDispatch", contextlib.nullcontext)
_PLAIN = (torch.Tensor, torch.nn.Parameter)
