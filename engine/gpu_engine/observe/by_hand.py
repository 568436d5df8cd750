"""Tells a script that updates its parameters by hand from one that accumulates gradients.

Both call `backward()` repeatedly without an optimizer step in between. A script that updates by
hand changes its parameters between two calls; one that accumulates, or only needs gradients, does
not. So a few parameters are compared from call to call, without waiting for a GPU.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from . import torch_private
from .optimizers import Optimizer

SURE = 10
"""So many calls, each after a change of the parameters, make it certain."""
UNKNOWN = 100
"""After so many calls without any parameters to compare, each call is taken for a step."""
_LEAVES, _NODES, _VALUES = 4, 2000, 4


class ByHand:
    """Finds out what calls of backward() mean while no optimizer has stepped."""

    def __init__(self) -> None:
        self.found = False
        """Whether the script is known to update by hand."""
        self.adds_up = False
        """Whether it also makes several calls for each update. A step then ends when the parameters
        change."""
        self.optimizer: Optimizer | None = None
        """The optimizer under whose number these updates are recorded."""
        self.marks: list[int] = []
        """The number of losses so far, for each call."""
        self._after: list[int] = []
        """The marks of those calls before which the parameters had changed."""
        self._updates = 0
        """Calls before which the parameters had changed."""
        self._kept = 0
        """Calls before which they had not changed."""
        self._leaves: list[tuple[weakref.ref[Any], Any]] = []
        """Some parameters, and their states at the last call."""

    @property
    def likely(self) -> bool:
        """Whether most calls were followed by an update."""
        return self._updates > self._kept

    def call(self, tensors: Any, losses: int) -> bool:
        """Note that `backward(tensors)` is about to run, with `losses` losses kept so far. Returns
        True when this call shows that the earlier calls were steps; `marks` then says at which
        loss each step begins."""
        updates = self._updates
        with contextlib.suppress(Exception):  # an unusual kind of tensor: nothing is learned
            self._count_change()
        if self.marks and losses < self.marks[-1]:
            self.marks[:] = [0]  # there were so many losses that they have been added up
            self._after.clear()
        calls = len(self.marks)
        if not self.marks or self._updates > updates:
            self._after.append(losses)
        if (self.likely and self._updates >= SURE) or (
                calls >= UNKNOWN and not self._kept and not self._updates):
            self.found = True
            self._leaves.clear()
            return True
        if self._updates >= SURE and self._after[-1] == losses:
            self.found = self.adds_up = True
            self.marks = self._after[:-1]  # losses after the last change are the next step's
            self._note(tensors)
            return True
        self.marks.append(losses)
        self._note(tensors)
        return False

    def ended(self, tensors: Any) -> bool:
        """Note that `backward(tensors)` is about to run, if several calls make one update. Returns
        whether a step has ended before this call."""
        updates = self._updates
        with contextlib.suppress(Exception):
            self._count_change()
        self._note(tensors)
        return self._updates > updates

    def _note(self, tensors: Any) -> None:
        """Keep the states of some parameters for the next comparison."""
        if not self._leaves:
            with contextlib.suppress(Exception):
                self._leaves = [(weakref.ref(p), None) for p in _leaves(tensors)]
        self._leaves = [(ref, _state(p)) for ref, _ in self._leaves if (p := ref()) is not None]

    def _count_change(self) -> None:
        """Count whether the parameters have changed since the last call."""
        then = [(p, state) for ref, state in self._leaves if (p := ref()) is not None]
        if not then:
            return
        if any(_state(p) != state for p, state in then):
            self._updates += 1
        elif all(state[1] is None and p.grad is None for p, state in then):
            self._updates += 1  # `p.data` on a GPU may have changed, as gradients were cleared
        else:
            self._kept += 1


def _state(p: torch.Tensor) -> Any:
    """A value that changes when the parameter changes: its version and, on a CPU, a few values."""
    values = None
    with torch_private.no_modes(p):
        if p.is_cpu and p.layout == torch.strided and p.is_contiguous() and p.numel() \
                and p.untyped_storage().nbytes():  # FSDP frees that of parameters it has divided
            flat = p.detach().view(-1)
            last = flat.numel() - 1
            values = [flat[last * i // (_VALUES - 1)].item() for i in range(_VALUES)]
    return p._version, values


def _leaves(tensors: Any) -> Iterator[torch.Tensor]:
    """A few parameters that `tensors` depend on."""
    tensors = (tensors,) if isinstance(tensors, torch.Tensor) else tensors
    nodes = [t.grad_fn for t in tensors if getattr(t, "grad_fn", None) is not None]
    seen, found = set(nodes), 0
    for _ in range(_NODES):
        if not nodes or found >= _LEAVES:
            return
        node = nodes.pop()
        if (leaf := getattr(node, "variable", None)) is not None:
            found += 1
            yield leaf
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)
