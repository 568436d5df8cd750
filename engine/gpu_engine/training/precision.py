"""What happens around the backward passes of a step: numeric precision, clipping, and how
the losses of all passes and ranks become one gradient.

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

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gpu_engine.common.errors import UserError
from gpu_engine.common.units import counted
from gpu_engine.worker.rank import torch_private
from gpu_engine.worker.rank.group import Group

_NOTHING = nullcontext()
_TYPES = {"off": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def trained(optimizer: Optimizer) -> list[nn.Parameter]:
    """The parameters that `optimizer` updates now. A task may add some while it trains, as gradual
    unfreezing does, so this is asked for in each step that needs it."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


class Precision:
    """Autocast for the forward pass, and the backward pass and optimizer step that go with it."""

    def __init__(self, dtype: str, device_type: str, *, tf32: bool = False,
                 leave_out_nonfinite: bool = False) -> None:
        """`dtype`: "off", "bf16" or "fp16". `tf32`: let float32 compute in TF32 on GPUs; made
        before a task is loaded, whose own settings then hold. `leave_out_nonfinite`: skip steps
        whose gradients are not finite; this computes the gradients' norm in each step and, on a
        GPU, waits for it once, as a GradScaler does."""
        self.dtype = _TYPES[dtype]
        self._device = device_type
        self._check = leave_out_nonfinite
        self._scaler = torch.amp.GradScaler(device_type) if dtype == "fp16" else None
        self._scale = self._scaler.get_scale() if self._scaler else 1.0
        if tf32:
            # For matrix products, convolutions and recurrent layers. The settings that torch 2.9
            # has beside them follow; with the new ones alone, reading one of these would raise.
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True

    def autocast(self) -> AbstractContextManager:
        """A context for the forward pass, in which it computes in bf16 or fp16 if so chosen."""
        if self.dtype is None:
            return _NOTHING
        return torch.autocast(self._device, dtype=self.dtype)

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass of `loss`, which adds its gradients to the parameters."""
        if self._check:
            # If the loss is not finite, this turns its gradients into NaN; else it multiplies
            # them by 1. The average of a NaN over ranks is NaN, so all ranks see it in their
            # gradients without further communication.
            loss = loss * torch.where(torch.isfinite(loss.detach()), 1.0, torch.nan)
        if self._scaler is not None:
            loss = self._scaler.scale(loss)
        loss.backward()

    def step(self, optimizer: Optimizer, clip: float, gradients: Any) -> bool:
        """Clip the gradients of what `optimizer` updates to a norm of `clip` (0: don't); step it.
        `gradients`: the strategy, which measures and clips them even if they are spread over ranks.

        Returns False if the step was skipped because the gradients are not finite. Weights and
        optimizer are then unchanged, on all ranks alike.
        """
        if self._scaler is not None:
            if clip > 0:  # the limit applies to the unscaled gradients
                self._scaler.unscale_(optimizer)
                gradients.clip(trained(optimizer), clip)
            self._scaler.step(optimizer)
            self._scaler.update()
            # The scale goes down exactly if the step was skipped (torch/amp/grad_scaler.py).
            before, self._scale = self._scale, self._scaler.get_scale()
            return self._scale >= before
        if clip > 0 or self._check:
            norm = gradients.clip(trained(optimizer), clip or math.inf)
            if self._check and not torch.isfinite(norm).item():
                return False
        optimizer.step()
        return True

    def state_dict(self) -> dict[str, Any] | None:
        """The gradient scaler's state for a checkpoint; None without one."""
        return self._scaler.state_dict() if self._scaler else None

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Restore the state from `state_dict`, if both precisions have a gradient scaler."""
        if self._scaler is not None and state:
            self._scaler.load_state_dict(state)
            self._scale = self._scaler.get_scale()


class Autocast(nn.Module):
    """Wraps a model so that it enters autocast itself, in whichever thread it is called.
    DataParallel's threads know whether autocast is on, but not its type, and would take fp16
    (torch/nn/parallel/parallel_apply.py)."""

    def __init__(self, model: nn.Module, device_type: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner = model
        self._how = device_type, dtype

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own forward pass, under autocast."""
        with torch.autocast(*self._how):
            return self.inner(*args, **kwargs)


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
        if self._counts not in (None, counts):
            raise UserError("Task.loss must always return the same kind, a mean or (sum, count)")
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
        if len(returned) != 2:
            raise UserError(f"Task.loss returned {counted(len(returned), 'value')}: return a mean, "
                            "or the sum and its count: (sum, count)")
        total = _scalar(returned[0])
        count = torch.as_tensor(returned[1], dtype=torch.float64).detach().to(
            total.device, non_blocking=True)
        if count.numel() != 1:
            raise UserError("Task.loss returned (sum, count) with a count of shape "
                            f"{tuple(count.shape)}: expected shape ()")
        count = count.reshape(())
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


def _scalar(loss: Any) -> Tensor:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        what = f"tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else \
            type(loss).__name__
        raise UserError(f"Task.loss returned a {what}: return the mean loss over the batch as a "
                        "tensor of shape (), or (sum, count)")
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
