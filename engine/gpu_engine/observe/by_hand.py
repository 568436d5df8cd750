"""Telling a script that updates its parameters by itself from one that accumulates gradients.

Both call `backward()` again and again while no optimizer steps. But a script that updates by hand
changes the parameters between two calls; one that accumulates, or only wants gradients, does not.
So a few parameters are compared from call to call, without waiting for a GPU.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from .optimizers import Optimizer

SURE = 10
"""Calls before which the parameters had changed that make it certain."""
UNKNOWN = 100
"""Calls without any parameters to compare after which each call is taken for a step."""
_LEAVES, _NODES, _VALUES = 4, 2000, 4


class ByHand:
    """What the calls of backward() before any step of an optimizer were."""

    def __init__(self) -> None:
        self.found = False
        """Whether the script is known to update by hand."""
        self.adds_up = False
        """Whether, besides, several calls make one update: a step ends where the parameters
        change."""
        self.optimizer: Optimizer | None = None
        """As whose steps the updates are told."""
        self.marks: list[int] = []
        """How many losses there were at each call."""
        self._after: list[int] = []
        """The marks of calls before which the parameters had changed."""
        self._updates = 0
        self._kept = 0
        """Calls before which they had not."""
        self._leaves: list[tuple[weakref.ref[Any], Any]] = []
        """Some parameters, and their states at the last call."""

    @property
    def likely(self) -> bool:
        """Whether most calls were followed by an update."""
        return self._updates > self._kept

    def call(self, tensors: Any, losses: int) -> bool:
        """`backward(tensors)` is about to run, with `losses` kept so far. True: it is found now
        that the calls before were steps; `marks` then holds where each step's losses begin."""
        updates = self._updates
        with contextlib.suppress(Exception):  # a tensor of some odd kind: nothing is known
            self._look()
        if self.marks and losses < self.marks[-1]:
            self.marks[:] = [0]  # so many that they were added up
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
            self.marks = self._after[:-1]  # what comes from the last on is the next step's
            self._note(tensors)
            return True
        self.marks.append(losses)
        self._note(tensors)
        return False

    def ended(self, tensors: Any) -> bool:
        """Where calls add up and `backward(tensors)` is about to run: whether a step has ended."""
        updates = self._updates
        with contextlib.suppress(Exception):
            self._look()
        self._note(tensors)
        return self._updates > updates

    def _note(self, tensors: Any) -> None:
        """Keep the states of some parameters."""
        if not self._leaves:
            with contextlib.suppress(Exception):
                self._leaves = [(weakref.ref(p), None) for p in _leaves(tensors)]
        self._leaves = [(ref, _state(p)) for ref, _ in self._leaves if (p := ref()) is not None]

    def _look(self) -> None:
        """Count whether the parameters have changed since the last call."""
        then = [(p, state) for ref, state in self._leaves if (p := ref()) is not None]
        if not then:
            return
        if any(_state(p) != state for p, state in then):
            self._updates += 1
        elif all(state[1] is None and p.grad is None for p, state in then):
            self._updates += 1  # on a GPU `p.data` may have changed; gradients tell
        else:
            self._kept += 1


def _state(p: torch.Tensor) -> Any:
    """Something that changes when a parameter does."""
    values = None
    if p.is_cpu and p.layout == torch.strided and p.is_contiguous() and p.numel():
        flat = p.detach().view(-1)
        last = flat.numel() - 1
        values = [flat[last * i // (_VALUES - 1)].item() for i in range(_VALUES)]
    return p._version, values


def _leaves(tensors: Any) -> Iterator[torch.Tensor]:
    """Some parameters that `tensors` depend on."""
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
