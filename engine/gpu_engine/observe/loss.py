"""Reads the losses on which `backward()` is called, without waiting for the GPU.

A loss on the CPU is read at once, one on a GPU through a ring in pinned memory.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from typing import Any, NamedTuple

import torch
from torch.autograd.function import FunctionCtx
from torch.autograd.graph import Node

from ..worker.rank.pinned import Ring

MOST = 1000
"""The most losses of one step that are kept one by one."""
_ARITHMETIC = frozenset({"AddBackward0", "SubBackward0", "MulBackward0", "DivBackward0"})
"""Nodes of a graph that make a loss of another."""
_DEEP = 8
"""So many of them are looked at, or one more."""
_SURE = 100
"""After so many steps of one loss each it is not asked any more when one was made, which tells what
a second loss stands for."""
_Tensor = torch.Tensor


class Coming(NamedTuple):
    """A loss that is on its way from the GPU."""

    slots: tuple[int, ...]
    """Of the value, or of the value and its divisor."""
    share: float = 1.0
    """What it counts in the sum."""


class PendingLoss:
    """A sum of losses, some of which are still on their way from the GPU."""

    __slots__ = ("_parts", "_ring", "_weight")

    def __init__(self, ring: Ring, parts: list[Any], weight: float | None = 1.0) -> None:
        """`weight`: by what the sum is multiplied; None: it is not known."""
        self._ring, self._parts, self._weight = ring, parts, weight

    @property
    def arrived(self) -> bool:
        """Whether all losses have arrived."""
        return all(self._ring.arrived(n) for part in self._parts if isinstance(part, Coming)
                   for n in part.slots)

    def take(self) -> float | None:
        """The sum, once all losses have arrived; None if one of them is unknown. Call it once, as
        it frees their slots."""
        total = 0.0
        for part in self._parts:
            if isinstance(part, Coming):
                value, *divisor = map(self._ring.take, part.slots)
                if part.share:  # 0 times NaN is NaN
                    total += (value / divisor[0] if divisor else value) * part.share
            else:
                total += part
        return None if self._weight is None else total * self._weight


def has_arrived(value: Any) -> bool:
    """Whether `value` is known by now: it is not a PendingLoss, or that has arrived."""
    return not isinstance(value, PendingLoss) or value.arrived


def value_of(value: Any) -> Any:
    """`value` itself, or the number of a PendingLoss that has arrived. Call it once."""
    return value.take() if isinstance(value, PendingLoss) else value


def made_at(node: Any) -> int:
    """When a node of a graph was made, as a number that grows with each that this thread makes: it
    tells a loss from what that was made of. -1: not known; where torch's name is gone, always, and
    each loss then counts by itself. A leaf's node counts as the latest."""
    try:
        return node._sequence_nr()
    except AttributeError:
        return -1


class Losses:
    """Adds up the losses between two steps."""

    def __init__(self) -> None:
        self.parts: list[Any] = []
        """For each call of backward(): a float if the loss is known, a `Coming` if it is on its
        way, None if it is unknown."""
        self._made: list[int | None] = []
        """For each of them when it was made, see `made_at`; None, or not there: not asked."""
        self._alone = 0
        """How many steps in a row have had one loss."""
        self._averaged = 0
        """How many of them are not a pipeline's, or are divided by its microbatches by now."""
        self.weight: float | None = 1.0
        """By what a rank's sum is multiplied, so that the mean over the ranks is the loss whose
        gradient they step on; None: not known."""
        self.unscaled = True
        """Whether no GradScaler has scaled a loss so far."""
        self._scaled: deque[tuple[weakref.ref[Any], Any]] = deque(maxlen=16)
        self._scale: Any = None
        self._ring: Ring | None = None

    def add(self, tensors: Any, gradients: Any) -> None:
        """Add the losses of a call `backward(tensors, gradients)` that is about to run."""
        if type(tensors) is _Tensor and gradients is None and self.unscaled and tensors.is_cpu:
            value: Any = tensors.tolist()  # the usual case; `item` is an operation, of much code
            if type(value) is float:
                if self._alone < _SURE or self.parts:
                    self._place(tensors.grad_fn)
                self.parts.append(value)
                return
        if isinstance(tensors, torch.Tensor):
            tensors, gradients = (tensors,), (gradients,)
        elif gradients is None or isinstance(gradients, torch.Tensor):
            gradients = (gradients,) * len(tensors)
        for tensor, gradient in zip(tensors, gradients):
            part = self._part(tensor, gradient)
            self._place(getattr(tensor, "grad_fn", None))
            self.parts.append(part)
        self._scale = None

    def _place(self, node: Node | None) -> None:
        """Note when the loss of this node was made, which is added next, and what it stands for."""
        if len(self.parts) >= MOST and self._ring is None:  # calls without steps
            self.parts[:] = [None if None in self.parts else sum(self.parts)]
            self._made[:], self._averaged = [-1], 0
        if self.parts:
            if len(self._made) < len(self.parts):
                self._made.append(None)
            self._stands_for(node)
        self._made.append(made_at(node))

    def averaged(self, count: int) -> None:
        """Note that a pipeline has divided the gradients of the latest losses by `count`, its
        microbatches: the script means, and logs, their mean."""
        for i in range(self._averaged, len(self.parts)):
            self._weigh(i, 1 / count)
        self._averaged = len(self.parts)

    def _weigh(self, i: int, share: float) -> None:
        part = self.parts[i]
        self.parts[i] = part._replace(share=part.share * share) if isinstance(part, Coming) \
            else 0.0 if not share else part and part * share

    def _stands_for(self, loss: Node | None) -> None:
        """Leave out the losses whose sum is that of the node `loss`: one worked out in chunks calls
        `backward()` on each, and returns their sum by an autograd function, for the one call that
        the script makes. That function was given what existed before the chunks."""
        nodes: list[Any] = [loss]
        for node in nodes:
            if isinstance(node, FunctionCtx):
                graph: Any = node
                oldest = min([made_at(of) for of, _ in graph.next_functions if of],
                             default=math.inf)
                for i, made in enumerate(self._made):
                    if made is None:
                        self.parts[i] = None
                    elif made > oldest:
                        self._weigh(i, 0.0)
            elif type(node).__name__ in _ARITHMETIC and len(nodes) < _DEEP:
                # The script divides it by its batches, or adds to it.
                nodes += [of for of, _ in node.next_functions]

    def scaled(self, outputs: Any, inputs: Any, scale: Any) -> None:
        """Note that a GradScaler has multiplied `inputs` by the tensor `scale` to get `outputs`."""
        pairs = [(outputs, inputs)] if isinstance(outputs, torch.Tensor) else \
            list(zip(outputs, inputs)) if isinstance(outputs, (list, tuple)) else []
        for out, of in pairs:
            if isinstance(out, torch.Tensor) and out is not of:
                # Detached, so that we do not keep its graph alive.
                self._scaled.append((weakref.ref(out), of.detach()))
        self._scale = scale
        self.unscaled = False

    def take(self) -> float | PendingLoss | None:
        """The sum of the losses since the last `take`; None if there were none or one is unknown.
        If it is a PendingLoss, its value must be taken as well, to free the slots."""
        parts, self._averaged = self.parts, 0
        self._alone = self._alone + 1 if len(parts) == 1 else 0
        if self._made:
            self._made.clear()
        if self._alone and self.unscaled and self.weight == 1.0 and type(parts[0]) is float:
            return parts.pop()
        self.parts = []
        self._scaled.clear()
        return self._sum(parts)

    def take_each(self, marks: list[int]) -> list[float | PendingLoss | None]:
        """As `take`, but several sums: one for each mark, an index into `parts`, of the losses from
        there to the next mark."""
        parts, self.parts, self._averaged, self._alone = self.parts, [], 0, 0
        self._made.clear()
        self._scaled.clear()
        return [self._sum(parts[a:b]) for a, b in zip(marks, [*marks[1:], None])]

    def _sum(self, parts: list[Any]) -> float | PendingLoss | None:
        weight = None if None in parts else self.weight
        if self._ring is not None and any(isinstance(p, Coming) for p in parts):
            return PendingLoss(self._ring, [p for p in parts if p is not None], weight)
        return sum(parts) * weight if parts and weight is not None else None

    def read(self, value: torch.Tensor) -> float | PendingLoss | None:
        """A tensor of one element as a number that is known now or later; None if unknown."""
        part = self._number(value)
        if self._ring is not None and isinstance(part, Coming):
            return PendingLoss(self._ring, [part])
        return part

    def _part(self, tensor: Any, gradient: Any) -> Any:
        """The entry in `parts` for one tensor."""
        if not isinstance(tensor, torch.Tensor):
            return None  # a GradientEdge
        scale, self_scale = None, self._scale
        for ref, of in self._scaled:
            if ref() is tensor:
                tensor, self_scale = of, None
                break
        if self_scale is not None:
            scale = self_scale  # made from a scaled loss, so it is another tensor
        if gradient is not None:
            # A vector holds losses (of examples, of GPUs), and the gradient their weights. A
            # matrix is an activation, as between two stages of a pipeline; it adds nothing where
            # the loss above it was seen, which was made after it.
            made = max([m for m in self._made if m is not None], default=-1)
            below = 0 <= made_at(tensor.grad_fn) < made
            if tensor.dim() > 1:
                return 0.0 if below else None
            if tensor.dim() and below:
                return None  # either
            with torch.no_grad():
                tensor = (tensor.detach() * gradient.detach()).sum()
        if tensor.numel() != 1 or tensor.is_complex():
            return None
        value = self._number(tensor)
        if scale is None or value is None:
            return value
        divisor = self._number(scale)
        if divisor is None:
            return None
        if isinstance(value, Coming):
            return Coming(value.slots + divisor.slots) if isinstance(divisor, Coming) else None
        return value / divisor if isinstance(divisor, float) else None

    def _number(self, tensor: torch.Tensor) -> Any:
        if type(tensor) is not torch.Tensor:
            ordinary = _as_tensor(tensor)
            if ordinary is None:
                return None
            tensor = ordinary
        if tensor.is_cpu:
            return float(tensor.item())
        if not tensor.is_cuda or torch.cuda.is_current_stream_capturing():
            return None
        if self._ring is None:
            self._ring = Ring()
        slot = self._ring.put(tensor.detach().reshape(()))
        return None if slot is None else Coming((slot,))


def _as_tensor(tensor: Any) -> torch.Tensor | None:
    """A tensor of a subclass as a torch.Tensor; None if that would take work or communication, as
    for a DTensor with parts on several ranks."""
    with torch._C.DisableTorchFunctionSubclass():
        default = torch.Tensor.__torch_dispatch__  # pyright: ignore[reportAttributeAccessIssue]
        if type(tensor).__torch_dispatch__ is default:
            return tensor.detach().as_subclass(torch.Tensor)
        local = getattr(tensor, "_local_tensor", None)
        if local is not None and all(p.is_replicate() for p in tensor.placements):
            return local
    return None
