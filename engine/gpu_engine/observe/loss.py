"""What `backward()` differentiates, as a number, without waiting for the GPU.

On the CPU a loss is read at once. On a GPU it is copied into pinned host memory behind the
kernels that make it, and looked at later by reading that memory alone: no CUDA call is made
from another thread, as the capture of a CUDA graph forbids those, and no event is recorded.
"""

from __future__ import annotations

import ctypes
import struct
import weakref
from collections import deque
from typing import Any

import torch

_SLOTS = 4096
MOST = 1000
"""Losses of one step that are kept apart."""
_EMPTY = 0x7FF4_DEAD_BEEF_0001
"""The bits of an empty slot: a NaN that no conversion to double gives."""


class PendingLoss:
    """A sum of losses of which some are still on their way from the GPU."""

    __slots__ = ("_known", "_parts", "_ring")

    def __init__(self, ring: _Ring, parts: list[Any], known: bool = True) -> None:
        self._ring, self._parts, self._known = ring, parts, known

    @property
    def arrived(self) -> bool:
        """Whether all are there."""
        return all(self._ring.arrived(n) for part in self._parts if isinstance(part, tuple)
                   for n in part)

    def take(self) -> float | None:
        """The sum, once all have arrived; None: one of them has no number. Only once, as it gives
        their slots back."""
        total = 0.0
        for part in self._parts:
            if isinstance(part, tuple):
                value, *divisor = map(self._ring.take, part)
                total += value / divisor[0] if divisor else value
            else:
                total += part
        return total if self._known else None


def has_arrived(value: Any) -> bool:
    """Whether `value` is known by now."""
    return not isinstance(value, PendingLoss) or value.arrived


def value_of(value: Any) -> Any:
    """`value` itself, or the number that a PendingLoss has become. Once."""
    return value.take() if isinstance(value, PendingLoss) else value


class _Ring:
    """Numbers on their way from a GPU, in pinned memory."""

    def __init__(self, slots: int = _SLOTS, *, pin: bool = True) -> None:
        with torch.inference_mode(False):
            # Explicit about everything: the script may have set other defaults.
            bits = torch.full((slots,), _EMPTY, dtype=torch.int64, device="cpu")
            self._values = (bits.pin_memory() if pin else bits).view(torch.float64)
        # The other thread looks at the memory itself: it calls nothing of torch.
        self._bits = (ctypes.c_int64 * slots).from_address(self._values.data_ptr())
        self._slots = slots
        self._put = self._taken = 0

    def put(self, value: torch.Tensor) -> int | None:
        """Start to copy `value`, of shape (); the slot to ask for. None: no room. A figure that is
        not told is better than a script that waits."""
        if self._put - self._taken >= self._slots:
            return None
        slot = self._put % self._slots
        self._values[slot].copy_(value, non_blocking=True)
        self._put += 1
        return slot

    def arrived(self, slot: int) -> bool:
        """Whether the number of this slot is there."""
        return self._bits[slot] != _EMPTY

    def take(self, slot: int) -> float:
        """The number of this slot, which has arrived; the slot is free again."""
        value = struct.unpack("d", struct.pack("q", self._bits[slot]))[0]
        self._bits[slot] = _EMPTY
        self._taken += 1
        return value


class Losses:
    """Adds up what is differentiated between two steps."""

    def __init__(self) -> None:
        self.parts: list[Any] = []
        """For each call: a float if it is known now, a tuple of slots if it is on its way, None if
        it has no number."""
        self.plain = True
        """Whether no GradScaler has scaled a loss so far."""
        self._scaled: deque[tuple[weakref.ref[Any], Any]] = deque(maxlen=16)
        self._scale: Any = None
        self._ring: _Ring | None = None

    def __len__(self) -> int:
        """How many losses there are since the last `take`."""
        return len(self.parts)

    def add(self, tensors: Any, gradients: Any) -> None:
        """`backward(tensors, gradients)` is about to run."""
        if type(tensors) is torch.Tensor and gradients is None and self.plain \
                and tensors.is_cpu and tensors.numel() == 1:
            value = tensors.item()  # nearly always; in few steps, as steps may be short
            if type(value) is float:
                self.parts.append(value)
                if len(self.parts) > MOST and self._ring is None:  # calls without steps
                    self.parts[:] = [None if None in self.parts else sum(self.parts)]
                return
        if isinstance(tensors, torch.Tensor):
            tensors, gradients = (tensors,), (gradients,)
        elif gradients is None or isinstance(gradients, torch.Tensor):
            gradients = (gradients,) * len(tensors)
        for tensor, gradient in zip(tensors, gradients):  # noqa: B905 - Python 3.9
            self.parts.append(self._part(tensor, gradient))
        self._scale = None

    def scaled(self, outputs: Any, inputs: Any, scale: Any) -> None:
        """A GradScaler has made `outputs` of `inputs`; `scale`: its factor, a tensor."""
        pairs = [(outputs, inputs)] if isinstance(outputs, torch.Tensor) else \
            list(zip(outputs, inputs)) if isinstance(outputs, (list, tuple)) else []  # noqa: B905
        for out, of in pairs:
            if isinstance(out, torch.Tensor) and out is not of:
                # Detached: the graph behind it must not live on for our sake.
                self._scaled.append((weakref.ref(out), of.detach()))
        self._scale = scale
        self.plain = False

    def take(self) -> float | PendingLoss | None:
        """The sum since the last `take`; None: there was none, or one without a number. Whoever
        takes a PendingLoss must take its value too."""
        parts = self.parts
        if len(parts) == 1 and self.plain and type(parts[0]) is float:
            return parts.pop()
        self.parts = []
        self._scaled.clear()
        return self._sum(parts)

    def take_each(self, marks: list[int]) -> list[float | PendingLoss | None]:
        """As `take`, but a sum for each mark, a place among the parts: of the losses from there to
        the next mark."""
        parts, self.parts = self.parts, []
        self._scaled.clear()
        return [self._sum(parts[a:b]) for a, b in zip(marks, [*marks[1:], None])]  # noqa: B905

    def _sum(self, parts: list[Any]) -> float | PendingLoss | None:
        known = None not in parts
        if self._ring is not None and any(isinstance(p, tuple) for p in parts):
            return PendingLoss(self._ring, [p for p in parts if p is not None], known)
        return sum(parts) if known and parts else None

    def read(self, value: torch.Tensor) -> float | PendingLoss | None:
        """A tensor of one element as a number, now or later."""
        part = self._number(value)
        if self._ring is not None and isinstance(part, tuple):
            return PendingLoss(self._ring, [part])
        return part

    def _part(self, tensor: Any, gradient: Any) -> Any:
        """A float, a tuple of slots (value, or value and divisor), or None: unknown."""
        if not isinstance(tensor, torch.Tensor):
            return None  # a GradientEdge
        scale, self_scale = None, self._scale
        for ref, of in self._scaled:
            if ref() is tensor:
                tensor, self_scale = of, None
                break
        if self_scale is not None:
            scale = self_scale  # scaled, then changed, so that it's another tensor
        if gradient is not None:
            # A vector of losses (one an example, one a GPU) with its weights is a loss; a
            # matrix is an activation, as between two stages of a pipeline.
            if tensor.dim() > 1:
                return None
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
        if isinstance(value, tuple):
            return (*value, *divisor) if isinstance(divisor, tuple) else None
        return value / divisor if isinstance(divisor, float) else None

    def _number(self, tensor: torch.Tensor) -> Any:
        if type(tensor) is not torch.Tensor:
            plain = _plain(tensor)
            if plain is None:
                return None
            tensor = plain
        if tensor.is_cpu:
            return float(tensor.item())
        if not tensor.is_cuda or torch.cuda.is_current_stream_capturing():
            return None
        if self._ring is None:
            self._ring = _Ring()
        slot = self._ring.put(tensor.detach().reshape(()))
        return None if slot is None else (slot,)


def _plain(tensor: Any) -> torch.Tensor | None:
    """A tensor of a subclass as a plain one; None where the subclass would have to do something
    for that: a DTensor whose parts lie on several ranks would have to talk to them."""
    with torch._C.DisableTorchFunctionSubclass():
        plain = torch.Tensor.__torch_dispatch__  # pyright: ignore[reportAttributeAccessIssue]
        if type(tensor).__torch_dispatch__ is plain:
            return tensor.detach().as_subclass(torch.Tensor)
        local = getattr(tensor, "_local_tensor", None)
        if local is not None and all(p.is_replicate() for p in tensor.placements):
            return local
    return None
