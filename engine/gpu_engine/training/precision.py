"""The numbers' types: full precision, bf16 or fp16 with a gradient scaler, and TF32."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

_NOTHING = nullcontext()
_TYPES = {"off": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Gradients(Protocol):
    """Who knows the gradients of a model, wherever their parts are: a strategy."""

    def gradient_norm(self, parameters: Iterable[nn.Parameter]) -> Tensor:
        """The norm of all gradients together, shape ()."""
        ...

    def clip(self, parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
        """Scale them down to a norm of `limit`, where it is larger; the norm before, shape ()."""
        ...


class Precision:
    """Autocast around the forward pass, and the optimizer step that fits it."""

    def __init__(self, dtype: str, device_type: str, *, tf32: bool = False,
                 leave_out_nonfinite: bool = False) -> None:
        """`leave_out_nonfinite`: a step with gradients that are not finite changes nothing. It
        costs the gradients' norm and, on a GPU, one synchronisation a step, as a GradScaler
        does. `tf32`: allow it, see `allow_tf32`."""
        self.dtype = _TYPES[dtype]
        self._device = device_type
        self._check = leave_out_nonfinite
        self._scaler = torch.amp.GradScaler(device_type) if dtype == "fp16" else None
        self._scale = self._scaler.get_scale() if self._scaler else 1.0
        if tf32:
            allow_tf32()

    def autocast(self) -> AbstractContextManager:
        """Around a forward pass: the computing in bf16 or fp16 that was asked for."""
        if self.dtype is None:
            return _NOTHING
        return torch.autocast(self._device, dtype=self.dtype)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of `loss`."""
        if self._check:
            # Makes this loss's gradients NaN exactly when it is not finite, and leaves the
            # others as they are (times 1). Averaged over ranks NaN stays NaN, so all ranks see
            # it in their gradients without asking each other.
            loss = loss * torch.where(torch.isfinite(loss.detach()), 1.0, torch.nan)
        if self._scaler is not None:
            loss = self._scaler.scale(loss)
        loss.backward()

    def step(self, optimizer: Optimizer, parameters: Iterable[nn.Parameter], clip: float,
             gradients: Gradients) -> bool:
        """Clip the gradients of `parameters` to a norm of `clip` (0: don't) and step the optimizer.

        False where the step was left out because of gradients that are not finite; weights and
        optimizer are then as before, on every rank alike.
        """
        if self._scaler is not None:
            if clip > 0:  # the limit is meant for the gradients' true size
                self._scaler.unscale_(optimizer)
                gradients.clip(parameters, clip)
            return self._scaled_step(self._scaler, optimizer)
        norm = None
        if clip > 0:
            norm = gradients.clip(parameters, clip)
        elif self._check:
            norm = gradients.gradient_norm(parameters)
        if self._check and norm is not None and not torch.isfinite(norm).item():
            return False
        optimizer.step()
        return True

    def _scaled_step(self, scaler: torch.amp.GradScaler, optimizer: Optimizer) -> bool:
        scaler.step(optimizer)
        scaler.update()
        # The scale goes down exactly when the step was left out (torch/amp/grad_scaler.py).
        before, self._scale = self._scale, scaler.get_scale()
        return self._scale >= before

    def state_dict(self) -> dict[str, Any] | None:
        """The gradient scaler's state for a checkpoint; None without one."""
        return self._scaler.state_dict() if self._scaler else None

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Take what `state_dict` gave; a run with another precision has nothing to take."""
        if self._scaler is not None and state:
            self._scaler.load_state_dict(state)
            self._scale = self._scaler.get_scale()


def allow_tf32() -> None:
    """Let float32 matrix products, convolutions and recurrent layers use TF32 on GPUs.

    Called before a task is loaded, so that what the task sets itself stands.
    https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices
    """
    cuda: Any = torch.backends.cuda
    cudnn: Any = torch.backends.cudnn
    if hasattr(cudnn, "conv"):  # from torch 2.9 on
        cuda.matmul.fp32_precision = "tf32"
        cudnn.conv.fp32_precision = cudnn.rnn.fp32_precision = "tf32"
    # Where the new settings alone say so, reading an old one is an error (as torch.compile's cache
    # does, and libraries); the old ones set both.
    cuda.matmul.allow_tf32 = True
    cudnn.allow_tf32 = True


class Autocast(nn.Module):
    """A model that enters autocast itself, in whichever thread it is called."""

    def __init__(self, model: nn.Module, precision: Precision) -> None:
        super().__init__()
        self.inner = model
        self._precision = precision

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with self._precision.autocast():
            return self.inner(*args, **kwargs)
