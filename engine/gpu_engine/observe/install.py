"""Observes a person's own training script step by step, from inside its process.

torch's global optimizer hooks report each step. There are no hooks for the loss and for the scale
of a GradScaler, so `torch.autograd.backward` (which `Tensor.backward` calls) and `GradScaler.scale`
and `step` are wrapped. Nothing here changes a number or waits for a GPU, and no error of ours
reaches the script.

The loss of a step is the sum of all tensors on which `backward()` was called since the last step
of any optimizer. So each optimizer of a GAN gets its own loss. Special cases:

- Calls from inside a backward pass (reentrant checkpointing) do not count, nor do those whose
  gradients are cleared before a step (`gradients`).
- If a step gets a closure, its loss is that of the closure's first evaluation. The further
  evaluations of L-BFGS do not count.
- The scale of a GradScaler is divided out. A step that it leaves out is counted in `skipped`.
- A vector with a gradient counts as their product. For a matrix (a pipeline stage) the loss is
  unknown.
- The first optimizer that steps gives the run's steps and its loss curve. Others that step on
  losses of their own are shown beside it, or begin the next training (`trainings`).
- An optimizer that is stepped once for each group of its parameters has made one step.
- If `backward()` is called a hundred times without any optimizer step, the calls are steps: of an
  update by hand, or of an optimizer whose step is inside torch.compile.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from ..events import schema
from ..events.paths import events_path
from ..events.writer import append
from ..worker.rank import memory
from . import exit_hooks, identity, loggers, parts, wrap
from .findings import Findings
from .observer import Observer
from .wrap import compiling

observer: Observer


def install(*, direct: bool) -> None:
    """Observe this process from now on. If its torch lacks something that this needs, nothing is
    observed. `direct`: whether the supervisor itself started the process, as a rank."""
    global observer
    observer = wrap.observer = Observer(Path(os.environ["GPU_PANEL_RUN"]), exit_hooks.add)
    try:
        _into_torch()
    except Exception as err:  # noqa: BLE001 - a torch that lacks something that we need
        observer.off = True  # what is wrapped by now does nothing then
        text = f"torch {torch.__version__} lacks what is needed to see this script's steps " \
            f"({type(err).__name__}: {err}): the script runs, but its steps are not shown"
        identity.note(text, observer.run)
        if direct:  # other processes may never become a rank
            with contextlib.suppress(OSError):
                append(events_path(observer.run, identity.identify().rank), schema.Warning(text))
        return
    os.register_at_fork(after_in_child=lambda: wrap.quietly(observer.in_child))
    atexit.register(exit_hooks.ends, observer)
    wrap.quietly(loggers.wrap_all, observer)
    wrap.quietly(_watch_loaders_and_saves)
    wrap.quietly(_find, direct)
    if os.environ.get("GPU_PANEL_OOM_SNAPSHOT") == "1":
        wrap.quietly(memory.record_from_start)
    if direct:
        wrap.quietly(observer.early)
        exit_hooks.print_stacks()  # before its first step, too


def _into_torch() -> None:
    """Wrap torch's functions and add the hooks. Raises if torch lacks one of them."""
    optim = import_module("torch.optim.optimizer")
    before, after = (optim.register_optimizer_step_pre_hook,
                     optim.register_optimizer_step_post_hook)
    torch.autograd.backward = _observed(torch.autograd.backward)
    with contextlib.suppress(Exception):  # TorchScript recognises builtins by identity
        builtins = torch.jit._builtins  # pyright: ignore[reportAttributeAccessIssue]
        builtins._builtin_ops.append((torch.autograd.backward, "aten::backward"))
    wrap.method(torch.amp.GradScaler, "scale", None, _scaled)
    wrap.method(torch.amp.GradScaler, "step", lambda *_, **__: observer.stepped, _scaler_stepped)
    wrap.method(torch.amp.GradScaler, "unscale_", _unscale_begins)
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        wrap.method(torch.nn.utils, name, _clip_begins, _clip_ended)
    before(_before_step)
    after(_after_step)
    # Also what calls the hooks: torch.compile would leave them out, and it does nothing else that
    # is worth compiling.
    for function in (torch.optim.Optimizer.profile_hook_step(install), _before_step, _after_step):
        wrap.passed_through(function)


# --- steps ----------------------------------------------------------------------------------------

def _observed(function: Any) -> Any:
    """`torch.autograd.backward`, observed. As `wrap.around` does, but what handles the arguments of
    any function takes 10 µs of cold code, and this is called in each step."""
    @functools.wraps(function)
    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        if compiling() or observer.off:
            return function(tensors, grad_tensors, *args, **kwargs)
        began = None
        try:
            began = observer.backward(tensors, grad_tensors)
        except Exception as err:  # noqa: BLE001
            observer.fault(err)
        result = function(tensors, grad_tensors, *args, **kwargs)
        if began is not None:  # where it raises, it is the phase in which the script has failed
            try:
                rec, rec.phase, marks = began
                if marks is not None:
                    marks.mark(parts.BACK)
                if observer.gradients.suspected:
                    observer.gradients.backward_ended()
            except Exception as err:  # noqa: BLE001
                observer.fault(err)
        return result

    return wrap.passed_through(backward)


def _before_step(optimizer: Any, args: Any, kwargs: Any) -> Any:
    """The step's arguments with its closure wrapped, so that its first evaluation gives the step's
    loss; None if there is no closure to wrap."""
    # Return at once while torch.compile traces a step: the code below would break its graph.
    if compiling() or observer.off:
        return None
    try:
        outermost = observer.step_begins()
    except Exception as err:  # noqa: BLE001
        observer.fault(err)
        return None
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    if not outermost or not callable(closure):
        return None
    closure = wrap.around(closure, observer.evaluates, observer.evaluated)
    return ((args[0], closure, *args[2:]), kwargs) if len(args) > 1 else \
        (args, {**kwargs, "closure": closure})


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    if not compiling() and not observer.off:
        try:
            observer.step_ends(optimizer)
        except Exception as err:  # noqa: BLE001
            observer.fault(err)


# --- GradScaler, and gradients that are clipped ---------------------------------------------------

def _scaled(_: Any, result: Any, scaler: Any, outputs: Any) -> None:
    if result is not outputs:
        observer.losses.scaled(result, outputs, getattr(scaler, "_scale", None))


def _scaler_stepped(stepped: int, *_: Any, **__: Any) -> None:
    if observer.stepped == stepped and not observer.losses.unscaled:
        observer.skipped()
        observer.stepped += 1  # so that a scaler whose `step` calls this one does not count it


def _clip_begins(*_: Any, **__: Any) -> None:
    if not observer.losses.unscaled:
        observer.gradients.clip_begins(observer.stepped)


def _clip_ended(_: Any, __: Any, parameters: Any, most: Any = None, *___: Any, **kwargs: Any
                ) -> None:
    observer.gradients.clip_ended(kwargs.get("max_norm", kwargs.get("clip_value", most)))


def _unscale_begins(scaler: Any, optimizer: Any) -> None:
    warning = observer.gradients.unscaled(scaler, optimizer)
    if warning is not None and observer.rec is not None:
        observer.rec.write(warning)


# --- data, files, and what is looked for ----------------------------------------------------------

def _watch_loaders_and_saves() -> None:
    loader = import_module("torch.utils.data").DataLoader
    began = parts.watch_loader(loader, lambda: observer.rec and observer.rec.parts, _loaded)
    wrap.method(loader, "__iter__", _iterates, lambda _, made, source: began(source, made))
    wrap.method(torch, "save", lambda *_, **__: observer.mark(parts.SAVES),
                lambda *_, **__: observer.mark(parts.SAVED), _unsaved)


def _iterates(loader: Any) -> None:
    if observer.findings is not None:
        observer.findings.iterated(loader, observer.steps_so_far())
    with contextlib.suppress(Exception):  # a data set without a length
        observer.iterated(loader)


def _loaded(loader: int, batch: Any) -> None:
    observer.loaded(loader, batch)
    if observer.findings is not None:
        observer.findings.loaded(loader, batch)


def _unsaved(_: Any, err: BaseException, thing: Any, f: Any = None, *__: Any, **___: Any) -> None:
    observer.mark(parts.SAVED)
    with contextlib.suppress(Exception):  # neither a path nor a file with a name
        observer.unsaved(err, f)


def _find(direct: bool) -> None:
    """Look for what `findings` tells, in a rank among several, and in a process with several
    devices that the supervisor itself has started."""
    who, devices = identity.identify(), identity.devices_given()
    several = who.world_size > 1
    if not several and not (direct and len(devices) > 1):
        return
    found = observer.findings = Findings(observer.run, who.rank, who.world_size, devices)
    if several:
        modules = import_module("torch.nn.modules.module")
        modules.register_module_module_registration_hook(found.registered)
        wrap.method(import_module("torch.utils.data").DistributedSampler, "set_epoch",
                    found.set_epoch)
