"""Turns what `Task.loss` returns into the gradient and the shown loss of one optimizer step.

A step is A backward passes on each of W ranks. Let S be the sum of losses in a pass and c the
number of items (examples, words) in that sum. The step's gradient is that of

    mean of means:   1/(W·A) · Σ S/c      if `Task.loss` returns a mean, a tensor
    mean of all:     Σ S / Σ c            if it returns (S, c)

The two agree if c is the same in every pass. If it differs, like the number of words in a batch of
sentences, the mean of means depends on how examples are spread over devices and passes; the mean
of all does not.

Σ c is only known once the last pass has begun. So each pass computes the gradients of S divided by
a reference, and the sums are corrected before the optimizer steps. The reference is about W⁻¹·Σ c
of the previous step, the same on all ranks, so that gradients have the size of a mean's, as fp16
needs. It is a power of two: dividing by that changes no digit (short of overflow and underflow),
so a resumed run, which starts with another reference, gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gpu_engine.common.errors import UserError
from gpu_engine.training import torch_private
from gpu_engine.training.precision import trained
from gpu_engine.worker.rank.process_group import Group


class StepLoss:
    """The losses of one step after another: call `of` for each pass, then `finish`."""

    def __init__(self, accumulate: int, group: Group, optimizer: Optimizer) -> None:
        """`accumulate`: passes in a step; `optimizer`: updates the parameters of which `finish`
        corrects the gradients."""
        self._passes, self._group = accumulate, group
        self._optimizer = optimizer
        self._counts: bool | None = None  # whether the task gives counts, once it is known
        self._total: Tensor | float | None = None
        self._count: Tensor | None = None
        self._reference: Tensor | None = None
        self._answer: Callable[[], Tensor] | None = None

    def of(self, returned: Any, *, last: bool) -> Tensor:
        """The loss to call `backward` on, for what `Task.loss` has `returned` in a pass. `last`:
        whether it is the step's last pass.

        Raises UserError if `returned` is neither a mean nor a sum and its count.
        """
        counts = isinstance(returned, (tuple, list))
        if self._counts is not None and counts != self._counts:
            raise UserError("Task.loss must always return the same kind, a mean or (sum, count); "
                            "it returned one and then the other")
        self._counts = counts
        if not counts:
            loss = _scalar(returned)
            if self._passes == 1:
                # Where the processor has just computed it, reading it costs no more than `detach`.
                self._total = loss.item() if loss.is_cpu else loss.detach()
                return loss
            loss = loss / self._passes
            self._add(loss.detach())
            return loss
        total, count = _sum_and_count(returned)
        self._add(total.detach(), count)
        if self._reference is None:  # the first step: assume the same count in all its passes
            self._reference = _power_of_two(
                self._group.start_all_reduce_sum(count.clone())() * self._passes / self._group.size)
        if last and self._count is not None:  # reduced while the last backward pass computes
            self._answer = self._group.start_all_reduce_sum(self._count.clone())
        return total / self._reference

    def finish(self) -> Tensor | float:
        """Correct the gradients after the last pass. Returns the step's loss: a tensor of shape (),
        or a number if it is known by now.

        With counts it is this rank's S divided by the average count of a rank, so that the mean
        over the ranks is the mean over all items. If all counts are 0, the loss is NaN.
        """
        shown, self._total = self._total, None
        if shown is None:
            raise RuntimeError("finish is called after the passes of a step")
        if self._answer is None or self._reference is None:  # the task gives means
            return shown
        count, self._count = self._answer() / self._group.size, None
        _scale([p.grad for p in trained(self._optimizer) if p.grad is not None],
               self._reference / count)
        self._reference = _power_of_two(count)
        return shown / count

    def _add(self, loss: Tensor, count: Tensor | None = None) -> None:
        self._total = loss if self._total is None else self._total + loss
        if count is not None:
            self._count = count if self._count is None else self._count + count


def _sum_and_count(returned: tuple | list) -> tuple[Tensor, Tensor]:
    """(sum, shape (); count, shape (), in float64, on the sum's device)."""
    if len(returned) != 2:
        raise UserError(f"Task.loss returned {len(returned)} values: return a mean, or the sum "
                        "and its count: (sum, count)")
    total, count = _scalar(returned[0]), returned[1]
    if not isinstance(count, Tensor):
        if isinstance(count, bool) or not isinstance(count, (int, float)) or count < 0:
            raise UserError(f"Task.loss returned (sum, count) with a count of {count!r}: expected "
                            "a number of at least 0, or a tensor of shape ()")
        return total, torch.full((), count, dtype=torch.float64, device=total.device)
    if count.numel() != 1:
        raise UserError("Task.loss returned (sum, count) with a count of shape "
                        f"{tuple(count.shape)}: expected shape ()")
    return total, count.detach().reshape(()).to(
        total.device, torch.float64, non_blocking=True)


def _scalar(loss: Any) -> Tensor:
    if not isinstance(loss, Tensor):
        raise UserError(f"Task.loss returned a {type(loss).__name__}: return the mean loss as a "
                        "tensor of shape (), or (sum, count)")
    if loss.dim() == 0:
        return loss
    if loss.numel() != 1:
        raise UserError(f"Task.loss returned a tensor of shape {tuple(loss.shape)}: expected "
                        "shape (), the mean over the batch, or (sum, count)")
    return loss.reshape(())


def _scale(grads: list[Tensor], factor: Tensor) -> None:
    """Multiply gradients by `factor` (shape (), float64), in place, with few kernel launches."""
    alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for grad in grads:
        if grad.is_sparse:
            grad = grad._values()
        alike.setdefault((grad.device, grad.dtype), []).append(grad)
    for (device, dtype), group in alike.items():
        own = factor.to(device, non_blocking=True)
        if dtype in (torch.float32, torch.float64):
            torch_private.multiply(group, own.to(dtype))
        else:  # a low-precision factor would lose digits
            for grad in group:
                grad.mul_(own)


def _power_of_two(count: Tensor) -> Tensor:
    """The next power of two above `count` (shape (), float64), or 1 for 0, on the same device."""
    count = torch.where(count > 0, count, 0.5)
    return count / torch.frexp(count).mantissa
