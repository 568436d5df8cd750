"""Seeing a person's own training script step by step, from inside, unnoticed.

torch's global optimizer hooks tell of each step. For what is differentiated and for the scale
of a GradScaler there are no hooks, so `torch.autograd.backward` (which `Tensor.backward` calls)
and `GradScaler.scale` and `step` are wrapped. Nothing here changes a number, waits for a GPU, or
lets a fault of its own reach the script.

The loss of a step is the sum of what `backward()` was called on since the last step of any
optimizer, so each optimizer of a GAN gets its own. What that means at the edges:

- Calls from inside a backward pass (reentrant checkpointing) are not counted.
- Inside an optimizer's step (L-BFGS) the first call counts, the closure's other ones do not.
- A GradScaler's scale is taken out; a step that it leaves out is counted in `skipped`.
- A vector with its weights counts as their product; a matrix (a stage of a pipeline) is unknown.
- The first optimizer that steps is the one whose steps are counted and whose loss is the curve;
  others that step on losses of their own stand beside it. One that has stepped 50 times since
  the first last did takes its place, as in the next fold of a cross-validation.
- Where 100 calls of `backward()` were followed by no step (parameters updated by hand, an
  optimizer's step inside torch.compile), each call is taken for a step from then on.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from . import observe_loss, observe_rank, observe_script

RUNNING, BACKWARD, OPTIMIZER = observe_rank.DOING

observer: observe_script.Observer
_is_compiling = torch.compiler.is_compiling


def _seen(what: Callable[..., None], *args: Any) -> None:
    """Tell the observer, whatever comes of it."""
    try:
        what(*args)
    except Exception as err:  # noqa: BLE001 - never the script's problem
        observer.fault(err)


def _wrap_backward() -> Any:
    original = torch.autograd.backward
    inside = torch._C._current_graph_task_id
    tensor, most = torch.Tensor, observe_loss.MOST

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        o = observer
        if o.off or inside() != -1:
            return original(*args, **kwargs)
        rec = o.rec
        # Nearly every call of a loop on the CPU; what `o.backward` does, in few steps.
        if o.ready and rec.phase is RUNNING and len(args) > 1 and args[1] is None \
                and type(args[0]) is tensor and args[0].is_cpu and len(o.losses.parts) < most:
            try:
                loss = args[0].item()
            except Exception:  # noqa: BLE001 - no scalar: torch says so itself
                loss = None
            if type(loss) is float:
                o.losses.parts.append(loss)
                rec.phase = BACKWARD
                try:
                    return original(*args, **kwargs)
                finally:
                    rec.phase = RUNNING
        rec = o.backward(args[0] if args else kwargs.get("tensors"),
                                args[1] if len(args) > 1 else kwargs.get("grad_tensors"))
        if rec is None:
            return original(*args, **kwargs)
        before, rec.phase = rec.phase, BACKWARD
        try:
            return original(*args, **kwargs)
        finally:
            rec.phase = before

    torch.autograd.backward = backward
    with contextlib.suppress(Exception):  # TorchScript knows builtins by identity
        torch.jit._builtins._builtin_ops.append((backward, "aten::backward"))
    return backward


def _wrap_scaler() -> list[Any]:
    scaler = torch.amp.GradScaler
    scale, step = scaler.scale, scaler.step

    @functools.wraps(scale)
    def observed_scale(self: Any, outputs: Any) -> Any:
        result = scale(self, outputs)
        if result is not outputs and not observer.off:
            observer.ready = False
            _seen(observer.losses.scaled, result, outputs, self._scale)
        return result

    @functools.wraps(step)
    def observed_step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = observer.stepped
        result = step(self, optimizer, *args, **kwargs)
        if observer.stepped == before and not (observer.off or observer.losses.plain):
            _seen(observer.skipped)
        return result

    scaler.scale, scaler.step = observed_scale, observed_step
    return [observed_scale, observed_step]


def _before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    # While torch.compile traces a step, there is nothing here to trace. It gets no further than
    # this: what comes next in every step breaks its graph.
    if _is_compiling():
        return
    o = observer
    if o.ready and not o.here.steps:
        o.here.steps = 1
        o.rec.phase = OPTIMIZER
    elif not o.off:
        o.step_begins(optimizer)


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    o = observer
    here = o.here
    if o.off or not here.steps:
        return
    if o.ready and here.steps == 1 and not here.closed:
        # Nearly every step of a loop on the CPU; what `o.step_ends` does, in few steps.
        parts, mine = o.losses.parts, o.optimizers.by_id.get(id(optimizer))
        if mine is not None and mine.ref() is optimizer:
            try:
                loss, rate = sum(parts), optimizer.param_groups[0]["lr"]
            except Exception:  # noqa: BLE001 - unknown or not there yet
                loss = rate = None
            if type(loss) is float and type(rate) is float:
                rec = o.rec
                if mine.index == 0:
                    rec.step_now = mine.steps = mine.steps + 1
                elif o.optimizers.beside(mine):
                    mine.steps += 1
                else:
                    o.step_ends(optimizer)
                    return
                here.steps = 0
                rec.phase = RUNNING
                parts.clear()
                if rate is mine.lr and mine.index == 0:
                    rec.queue.append(loss)
                else:
                    mine.lr = rate
                    rec.queue.append((mine.index, loss, rate))
                return
    o.step_ends(optimizer)


def _hide_from_dynamo(through: list[Any], whole: list[Any]) -> None:
    """Keep torch.compile from compiling our own functions: what `through` calls is still the
    script's, `whole` is ours to the last."""
    frames = torch._C._dynamo.eval_frame
    if not hasattr(frames, "set_code_exec_strategy"):
        for function in (*through, *whole):
            frames.skip_code(function.__code__)
        return
    skip, default = frames._FrameAction.SKIP, frames._FrameAction.DEFAULT
    for function in through:
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, default))
    for function in whole:
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))


def install(*, direct: bool) -> None:
    """Observe this process from now on. `direct`: the supervisor started it as a rank."""
    global observer
    from torch.optim import optimizer as optim

    observer = observe_script.Observer(Path(os.environ["GPU_PANEL_RUN"]))
    os.register_at_fork(before=lambda: _seen(observer.before_fork),
                        after_in_parent=lambda: _seen(observer.after_fork),
                        after_in_child=lambda: _seen(observer.in_child))
    atexit.register(lambda: _seen(observer.finish))
    through = [_wrap_backward(), *_wrap_scaler()]
    optim.register_optimizer_step_pre_hook(_before_step)
    optim.register_optimizer_step_post_hook(_after_step)
    with contextlib.suppress(Exception):
        # What calls the hooks: compiled, it would leave them out, and there's nothing else in it.
        caller = torch.optim.Optimizer.profile_hook_step(install)
        _hide_from_dynamo([*through, caller], [_before_step, _after_step, _seen,
                                               observe_script.Observer.backward])
    if direct:
        _seen(observer.early)
