"""Observes a person's own training script step by step, from inside its process.

torch's global optimizer hooks report each step. There are no hooks for the loss and for the scale
of a GradScaler, so `torch.autograd.backward` (which `Tensor.backward` calls) and `GradScaler.scale`
and `step` are wrapped. Nothing here changes a number or waits for a GPU, and no error of ours
reaches the script.

The loss of a step is the sum of all tensors on which `backward()` was called since the last step
of any optimizer. So each optimizer of a GAN gets its own loss. Special cases:

- Calls from inside a backward pass (reentrant checkpointing) do not count, nor do those whose
  gradients are cleared before a step (`cleared`).
- If a step gets a closure, its loss is that of the closure's first evaluation. The further
  evaluations of L-BFGS do not count.
- The scale of a GradScaler is divided out. A step that it leaves out is counted in `skipped`.
- A vector with a gradient counts as their product. For a matrix (a pipeline stage) the loss is
  unknown.
- The first optimizer that steps gives the run's steps and its loss curve. Others that step on
  losses of their own are shown beside it, or begin the next training (`trainings`).
- An optimizer that is stepped once for each group of its parameters has made one step.
- If `backward()` is called without any optimizer step, and the parameters change, the calls are
  steps: of an update by hand, or of an optimizer whose step is inside torch.compile (`by_hand`).
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from ..worker.rank import memory
from . import exit_hooks, frames, identity, loggers, parts
from .findings import Findings
from .observer import BACKWARD, Observer
from .recorder import ScriptRecorder

observer: Observer


_compiling = torch.compiler.is_dynamo_compiling
"""torch's function that torch.compile takes to be true in what it traces."""


def _quietly(what: Callable[..., None], *args: Any) -> None:
    """Call `what`. An error in it is reported to the observer and does not reach the script."""
    try:
        what(*args)
    except Exception as err:  # noqa: BLE001 - never the script's problem
        observer.fault(err)


def _wrap_backward(undo: _Undo) -> Any:
    original = torch.autograd.backward
    inside = torch._C._current_graph_task_id

    @frames.unseen
    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        o = observer
        if o.off or inside() != -1:
            rec = None
        else:
            rec = o.backward(args[0] if args else kwargs.get("tensors"),
                             args[1] if len(args) > 1 else kwargs.get("grad_tensors"))
        before = "" if rec is None else rec.phase
        if rec is not None:
            rec.phase = BACKWARD
            rec.parts.begin_backward()
        try:
            return original(*args, **kwargs)
        except BaseException as err:
            frames.leave_out_ours(err)
            raise
        finally:
            if rec is not None:
                rec.phase = before
                rec.parts.here(parts.BACK)
                if o.cleared.suspected:
                    _quietly(o.cleared.confirm)

    undo.set(torch.autograd, "backward", backward)
    with contextlib.suppress(Exception):  # TorchScript recognises builtins by identity
        builtins = torch.jit._builtins  # pyright: ignore[reportAttributeAccessIssue]
        builtins._builtin_ops.append((backward, "aten::backward"))
    return backward


def _wrap_scaler(undo: _Undo) -> list[Any]:
    scaler = torch.amp.GradScaler
    ours: list[Any] = []

    def wrap(cls: Any) -> None:
        """Wrap the methods that `cls` itself defines; a subclass, such as FSDP's, may have its
        own."""
        for name, around in (("scale", _around_scale), ("step", _around_step),
                             ("unscale_", _around_unscale)):
            own = vars(cls).get(name)
            if own is not None and own not in ours:
                observed = around(own)
                ours.append(observed)
                undo.set(cls, name, observed)

    @classmethod
    @frames.unseen
    def __init_subclass__(cls: Any, **kwargs: Any) -> None:
        try:
            super(scaler, cls).__init_subclass__(**kwargs)
        except BaseException as err:
            frames.leave_out_ours(err)
            raise
        _quietly(wrap, cls)

    known = [scaler]
    for cls in known:
        wrap(cls)
        known += cls.__subclasses__()
    undo.set(scaler, "__init_subclass__", __init_subclass__)
    return ours


def _around_scale(scale: Any) -> Any:
    @frames.unseen
    @functools.wraps(scale)
    def observed_scale(self: Any, outputs: Any) -> Any:
        try:
            result = scale(self, outputs)
        except BaseException as err:
            frames.leave_out_ours(err)
            raise
        if result is not outputs and not observer.off:
            _quietly(observer.losses.scaled, result, outputs, getattr(self, "_scale", None))
        return result

    return observed_scale


def _around_step(step: Any) -> Any:
    @frames.unseen
    @functools.wraps(step)
    def observed_step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = observer.stepped
        try:
            result = step(self, optimizer, *args, **kwargs)
        except BaseException as err:
            frames.leave_out_ours(err)
            raise
        if observer.stepped == before and not (observer.off or observer.losses.unscaled):
            _quietly(observer.skipped)
            observer.stepped += 1  # so that a scaler whose `step` calls this one does not count it
        return result

    return observed_step


def _around_unscale(unscale: Any) -> Any:
    @frames.unseen
    @functools.wraps(unscale)
    def observed_unscale(self: Any, optimizer: Any) -> Any:
        if observer.clips.clipped:
            _quietly(observer.unscaled, self, optimizer)
        try:
            return unscale(self, optimizer)
        except BaseException as err:
            frames.leave_out_ours(err)
            raise

    return observed_unscale


def _wrap_clips(undo: _Undo) -> list[Any]:
    ours = []
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        ours.append(_around_clip(getattr(torch.nn.utils, name)))
        undo.set(torch.nn.utils, name, ours[-1])
    return ours


def _around_clip(clip: Any) -> Any:
    @frames.unseen
    @functools.wraps(clip)
    def observed_clip(*args: Any, **kwargs: Any) -> Any:
        looks = not (_compiling() or observer.off or observer.losses.unscaled
                     or observer.clips.over)
        if looks:
            _quietly(observer.clips.begins, observer.stepped)
        try:
            result = clip(*args, **kwargs)
        except BaseException as err:
            frames.leave_out_ours(err)
            raise
        if looks:
            most = args[1] if len(args) > 1 else kwargs.get("max_norm", kwargs.get("clip_value"))
            _quietly(observer.clips.ended, most)
        return result

    return observed_clip


_MISSING = object()


class _Undo:
    """Remembers what was replaced in torch, so that calling it restores everything."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []
        self.hooks: list[Any] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        self._before.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, value)

    def __call__(self) -> None:
        for handle in self.hooks:
            handle.remove()
        for owner, name, value in reversed(self._before):
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


def _once(closure: Callable[..., Any]) -> Callable[..., Any]:
    """A step's closure, wrapped so that its first evaluation gives the step's loss."""
    @frames.unseen
    @functools.wraps(closure)
    def observed(*args: Any, **kwargs: Any) -> Any:
        o = observer
        first = not (o.off or o.here.closed)
        parts = len(o.losses)
        try:
            result = closure(*args, **kwargs)
        except BaseException as err:
            frames.leave_out_ours(err)
            raise
        if first:
            _quietly(o.evaluated, parts, result)
        return result

    return observed


def _before_step(optimizer: Any, args: Any, kwargs: Any) -> Any:
    # Return at once while torch.compile traces a step: the code below would break its graph.
    if _compiling():
        return None
    if not observer.off:
        observer.step_begins()
    if len(args) > 1 or kwargs:
        return _with_closure(args, kwargs)
    return None


def _with_closure(args: Any, kwargs: Any) -> Any:
    """A step's arguments with its closure wrapped; None if there is no closure to wrap."""
    if observer.off or observer.here.steps != 1:
        return None
    if len(args) > 1 and callable(args[1]):
        return (args[0], _once(args[1]), *args[2:]), kwargs
    if callable(kwargs.get("closure")):
        return args, {**kwargs, "closure": _once(kwargs["closure"])}
    return None


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    if not _compiling() and not observer.off:
        observer.step_ends(optimizer)


def _hide_from_dynamo(through: list[Any], whole: list[Any]) -> None:
    """Keep torch.compile from compiling our functions. Functions in `through` call the script's
    code, which is still compiled; those in `whole` call only our own."""
    frames = torch._C._dynamo.eval_frame  # pyright: ignore[reportAttributeAccessIssue]
    if not hasattr(frames, "set_code_exec_strategy"):  # an older torch
        for function in (*through, *whole):
            frames.skip_code(function.__code__)
        # That leaves out the functions themselves, but not what they call.
        for name in ("backward", "step_begins", "step_ends", "evaluated", "skipped"):
            alone = _without_dynamo(getattr(Observer, name), frames.set_eval_frame)
            frames.skip_code(alone.__code__)
            setattr(Observer, name, alone)
        return
    skip, default = frames._FrameAction.SKIP, frames._FrameAction.DEFAULT
    for function in through:
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, default))
    for function in whole:
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))


def _without_dynamo(function: Callable[..., Any],
                    set_eval_frame: Callable[[Any], Any]) -> Callable[..., Any]:
    """The function as it is without torch.compile, which compiles nothing while it runs."""
    def alone(*args: Any) -> Any:
        before = set_eval_frame(None)
        try:
            return function(*args)
        finally:
            set_eval_frame(before)

    return alone


def install(*, direct: bool) -> None:
    """Observe this process from now on. If its torch lacks something that this needs, nothing is
    observed. `direct`: whether the supervisor itself started the process, as a rank."""
    global observer
    observer = Observer(Path(os.environ["GPU_PANEL_RUN"]), exit_hooks.add)
    undo = _Undo()
    try:
        _into_torch(undo)
    except Exception as err:  # noqa: BLE001 - a torch that lacks something that we need
        undo()
        observer.off = True
        identity.cannot_observe(observer.run, direct, (
            f"torch {torch.__version__} lacks what is needed to see this script's steps "
            f"({type(err).__name__}: {err}): the script runs, but its steps are not shown"))
        return
    os.register_at_fork(before=lambda: _quietly(observer.before_fork),
                        after_in_parent=lambda: _quietly(observer.after_fork),
                        after_in_child=lambda: _quietly(observer.in_child))
    atexit.register(lambda: _quietly(observer.finish))
    _quietly(loggers.wrap_all, observer)
    _quietly(_watch_loaders_and_saves, undo)
    _quietly(_find, undo, direct)
    if os.environ.get("GPU_PANEL_OOM_SNAPSHOT") == "1":
        _quietly(memory.record_from_start)
    if direct:
        _quietly(observer.early)
        exit_hooks.print_stacks()  # before its first step, too


def _find(undo: _Undo, direct: bool) -> None:
    """Look for what `findings` tells, in a rank among several, and in a process with several
    devices that the supervisor itself has started."""
    who = identity.identify()
    devices = identity.devices_given()
    several = who.world_size > 1
    if not several and not (direct and len(devices) > 1):
        return
    observer.findings = Findings(observer.run, who.rank, who.world_size, devices)
    if several:
        modules = import_module("torch.nn.modules.module")
        modules.register_module_module_registration_hook(_module_registered)


def _watch_loaders_and_saves(undo: _Undo) -> None:
    loader = import_module("torch.utils.data").DataLoader
    began = parts.watch_loader(loader, undo.set, lambda: _parts_of(observer.rec), _loaded)
    undo.set(loader, "__iter__", _around_iter(loader.__iter__, began))
    undo.set(torch, "save", _around_save(torch.save))


def _parts_of(rec: ScriptRecorder | None) -> parts.ScriptParts | None:
    return None if rec is None else rec.parts


def _module_registered(module: Any, name: str, inner: Any) -> None:
    if observer.findings is not None:
        observer.findings.registered(module, name, inner)


def _loaded(loader: int, batch: Any) -> None:
    if observer.findings is not None:
        observer.findings.loaded(loader, batch)


def _around_iter(iterate: Any, began: Callable[[Any, Any], None]) -> Any:
    @frames.unseen
    @functools.wraps(iterate)
    def observed_iter(self: Any) -> Any:
        found = observer.findings
        if found is not None:
            found.iterated(self, observer.steps_so_far())
        with contextlib.suppress(Exception):  # a data set without a length
            observer.iterated(self)
        try:
            iteration = iterate(self)
        except BaseException as err:
            frames.leave_out_ours(err)
            raise
        _quietly(began, self, iteration)
        return iteration

    return observed_iter


def _around_save(save: Any) -> Any:
    @frames.unseen
    @functools.wraps(save)
    def observed_save(*args: Any, **kwargs: Any) -> Any:
        rec = observer.rec
        if rec is not None:
            rec.parts.here(parts.SAVES)
        try:
            result = save(*args, **kwargs)
        except BaseException as err:
            frames.leave_out_ours(err)
            with contextlib.suppress(Exception):  # neither a path nor a file with a name
                observer.unsaved(err, args[1] if len(args) > 1 else kwargs.get("f"))
            raise
        finally:
            if rec is not None:
                rec.parts.here(parts.SAVED)
        found = observer.findings
        if found is not None:
            found.saved(args[1] if len(args) > 1 else kwargs.get("f"), observer.steps_so_far())
        return result

    return observed_save


def _into_torch(undo: _Undo) -> None:
    """Wrap torch's functions and add the hooks. Raises if torch lacks one of them; `undo` then
    knows what was done so far."""
    optim = import_module("torch.optim.optimizer")
    before, after = (optim.register_optimizer_step_pre_hook,
                     optim.register_optimizer_step_post_hook)
    scaled = _wrap_scaler(undo)
    through = [_wrap_backward(undo), *scaled, *_wrap_clips(undo)]
    undo.hooks.append(before(_before_step))
    undo.hooks.append(after(_after_step))
    with contextlib.suppress(Exception):
        # The function that calls the hooks: torch.compile would leave them out, and it does nothing
        # else that is worth compiling.
        caller = torch.optim.Optimizer.profile_hook_step(install)
        _hide_from_dynamo([*through, caller], [_before_step, _after_step, _quietly,
                                               Observer.backward])
