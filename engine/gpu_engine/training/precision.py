"""Numeric precision: full precision, bf16, fp16 with a gradient scaler, and TF32."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gpu_engine.common.errors import UserError

_NOTHING = nullcontext()
_TYPES = {"off": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def trained(optimizer: Optimizer) -> list[nn.Parameter]:
    """The parameters that `optimizer` updates now. A task may add some while it trains, as gradual
    unfreezing does, so this is asked for in each step that needs it."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


class Gradients(Protocol):
    """Measures and clips the gradients of a model, even if they are spread over ranks. A strategy
    is one."""

    def gradient_norm(self, parameters: Iterable[nn.Parameter]) -> Tensor:
        """The norm of all gradients together, shape ()."""
        ...

    def clip(self, parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
        """Scale the gradients down to a norm of `limit` if it is larger. Returns the norm before,
        shape ()."""
        ...


class Precision:
    """Autocast for the forward pass, and the backward pass and optimizer step that go with it."""

    def __init__(self, dtype: str, device_type: str, *, tf32: bool = False,
                 leave_out_nonfinite: bool = False) -> None:
        """`dtype`: "off", "bf16" or "fp16". `tf32`: call `allow_tf32`. `leave_out_nonfinite`: skip
        steps whose gradients are not finite; this computes the gradients' norm in each step and,
        on a GPU, waits for it once, as a GradScaler does."""
        self.dtype = _TYPES[dtype]
        self._device = device_type
        self._check = leave_out_nonfinite
        self._scaler = torch.amp.GradScaler(device_type) if dtype == "fp16" else None
        self._scale = self._scaler.get_scale() if self._scaler else 1.0
        if tf32:
            allow_tf32()

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

    def step(self, optimizer: Optimizer, clip: float, gradients: Gradients) -> bool:
        """Clip the gradients of what `optimizer` updates to a norm of `clip` (0: don't); step it.

        Returns False if the step was skipped because the gradients are not finite. Weights and
        optimizer are then unchanged, on all ranks alike.
        """
        if self._scaler is not None:
            if clip > 0:  # the limit applies to the unscaled gradients
                self._scaler.unscale_(optimizer)
                self._norm(optimizer, clip, gradients)
            return self._scaled_step(self._scaler, optimizer)
        norm = self._norm(optimizer, clip, gradients) if clip > 0 or self._check else None
        if self._check and norm is not None and not torch.isfinite(norm).item():
            return False
        optimizer.step()
        return True

    @staticmethod
    def _norm(optimizer: Optimizer, clip: float, gradients: Gradients) -> Tensor:
        """The norm of all gradients, shape (), which are clipped to `clip` (0: they are not)."""
        try:
            return gradients.clip(trained(optimizer), clip) if clip > 0 else \
                gradients.gradient_norm(trained(optimizer))
        except RuntimeError as err:
            if not any(p.grad is not None and p.grad.is_sparse for p in trained(optimizer)):
                raise
            raise UserError("train.clip and train.on_nonfinite = \"skip\" need the norm of all "
                            "gradients, and torch has none for sparse ones: leave both out, or "
                            f"make the embedding without sparse=True ({err})") from err

    def _scaled_step(self, scaler: torch.amp.GradScaler, optimizer: Optimizer) -> bool:
        scaler.step(optimizer)
        scaler.update()
        # The scale goes down exactly if the step was skipped (torch/amp/grad_scaler.py).
        before, self._scale = self._scale, scaler.get_scale()
        return self._scale >= before

    def state_dict(self) -> dict[str, Any] | None:
        """The gradient scaler's state for a checkpoint; None without one."""
        return self._scaler.state_dict() if self._scaler else None

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Restore the state from `state_dict`, if both precisions have a gradient scaler."""
        if self._scaler is not None and state:
            self._scaler.load_state_dict(state)
            self._scale = self._scaler.get_scale()


def allow_tf32() -> None:
    """Let float32 matrix products, convolutions and recurrent layers use TF32 on GPUs.

    Called before a task is loaded, so that the task's own settings come last and hold.
    https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices
    """
    cuda: Any = torch.backends.cuda
    cudnn: Any = torch.backends.cudnn
    if hasattr(cudnn, "conv"):  # from torch 2.9 on
        cuda.matmul.fp32_precision = "tf32"
        cudnn.conv.fp32_precision = cudnn.rnn.fp32_precision = "tf32"
    # The old settings set the new ones too. With only the new ones set, reading an old one raises,
    # and torch.compile's cache and some libraries read them.
    cuda.matmul.allow_tf32 = True
    cudnn.allow_tf32 = True


class Autocast(nn.Module):
    """Wraps a model so that it enters autocast itself, in whichever thread it is called."""

    def __init__(self, model: nn.Module, precision: Precision) -> None:
        super().__init__()
        self.inner = model
        self._precision = precision

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own forward pass, under autocast."""
        with self._precision.autocast():
            return self.inner(*args, **kwargs)
