"""Records the values that a script passes to a logger: TensorBoard, W&B, Lightning, transformers.
Fabric and accelerate log through these. And notes by what a pipeline of torch's and FSDP divide
gradients, that accelerate has caught an error that it answers by a smaller batch, and when torch
makes the state of an optimizer.

We import none of these libraries. Once the script has imported one, its methods are wrapped; what
they do, return and raise does not change. Only numbers are recorded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib.machinery import PathFinder
from typing import Any

from ..events.schema import Warning
from ..worker.rank import record_writer
from . import parts, wrap
from .observer import Observer
from .recorder import ScriptRecorder

Read = Callable[..., Any]
Wraps = Callable[[Observer, Any], Any]


def _scalar(tag: Any, scalar_value: Any, *_: Any, **__: Any) -> Any:
    return {tag: scalar_value}


def _scalars(main_tag: Any, tag_scalar_dict: Any, *_: Any, **__: Any) -> Any:
    return {f"{main_tag}/{tag}": value for tag, value in tag_scalar_dict.items()}


def _mapping(*args: Any, **kwargs: Any) -> Any:
    """The mapping among the arguments, whatever its name and place."""
    return next((value for value in (*args, *kwargs.values()) if isinstance(value, Mapping)), None)


def _logs(read: Read) -> Wraps:
    return lambda observer, method: _around(observer, method, read)


def _averages(observer: Observer, method: Any) -> Any:
    return wrap.around(method, None, lambda _, __, stage, grad_scale_factor:
                       stage.is_last and observer.losses.averaged(grad_scale_factor))


def _divides(observer: Observer, method: Any) -> Any:
    def after(_: Any, __: Any, module: Any, factor: float) -> None:
        # It adds the ranks' gradients up and divides them by this in place of their number.
        mesh = getattr(next(module.parameters(), None), "device_mesh", None)
        observer.losses.weight = mesh.size() / factor if mesh is not None and mesh.ndim == 1 \
            else None

    return wrap.around(method, None, after)


def _lowers(observer: Observer, function: Any) -> Any:
    return wrap.around(function, None, lambda _, lowers, __: lowers and observer.lowered())


def _makes_state(observer: Observer, function: Any) -> Any:
    def before(_: Any) -> tuple[ScriptRecorder | None, bool]:
        was = observer.rec, observer.tried
        # For so long this is no rank, nor becomes one: the step with a rate of 0 by which torch
        # makes an optimizer's state before it loads one is not a step of the training.
        observer.rec, observer.tried = None, True
        return was

    def after(was: tuple[ScriptRecorder | None, bool], *_: Any) -> None:
        observer.rec, observer.tried = was

    return wrap.around(function, before, after, after)


_WRITER = (("SummaryWriter", "add_scalar", _logs(_scalar)),
           ("SummaryWriter", "add_scalars", _logs(_scalars)))
_WHERE: dict[str, tuple[tuple[str | None, str, Wraps], ...]] = {
    "torch.utils.tensorboard.writer": _WRITER,
    "tensorboardX.writer": _WRITER,
    "wandb.sdk.wandb_run": (("Run", "log", _logs(_mapping)),),
    "lightning.pytorch.trainer.connectors.logger_connector.logger_connector":
        (("_LoggerConnector", "log_metrics", _logs(_mapping)),),
    "transformers.trainer_callback": (("CallbackHandler", "on_log", _logs(_mapping)),),
    "torch.distributed.pipelining.stage": (("_PipelineStageBase", "scale_grads", _averages),),
    "torch.distributed.fsdp._fully_shard._fully_shard":
        (("FSDPModule", "set_gradient_divide_factor", _divides),),
    "torch.distributed.checkpoint.state_dict": ((None, "_init_optim_state", _makes_state),),
    "accelerate.utils.memory": ((None, "should_reduce_batch_size", _lowers),),
}
"""For each module: its classes (None: the module itself), their methods, and what wraps these."""
_NAMES = 300
"""The most names of values that are recorded for one process."""


def wrap_all(observer: Observer) -> None:
    """Wrap the loggers that are imported already, and the others as soon as they are."""
    for name in _WHERE:
        module = sys.modules.get(name)
        if module is not None:
            wrap.quietly(_wrap, observer, module)
    # Just before the finder for sys.path, which is the one that finds these modules.
    sys.meta_path.insert(sys.meta_path.index(PathFinder), _Finder(observer))


class _Finder:
    """An entry on sys.meta_path that wraps the modules in `_WHERE` when they are imported."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _WHERE:
            return None
        at = sys.meta_path.index(self)
        for finder in sys.meta_path[at + 1:]:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                loader: Any = spec.loader
                wrap.quietly(setattr, loader, "exec_module", wrap.around(
                    loader.exec_module, None, lambda _, __, module: _wrap(self._observer, module)))
                return spec
        return None


def _wrap(observer: Observer, module: Any) -> None:
    for name, method, wraps in _WHERE[module.__name__]:
        owner = module if name is None else getattr(module, name, None)
        if owner is not None and callable(vars(owner).get(method)):
            setattr(owner, method, wraps(observer, vars(owner)[method]))


def _around(observer: Observer, method: Any, read: Read) -> Any:
    def before(_: Any, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        if observer.rec is None:
            return None
        observer.rec.parts.here(parts.SAVES)
        try:
            return numbers(read(*args, **kwargs))
        except Exception:  # noqa: BLE001 - wrong arguments: the method itself will raise
            return None

    def after(values: dict[str, Any] | None, *_: Any, **__: Any) -> None:
        observer.mark(parts.SAVED)
        if values:
            _record(observer, values)

    return wrap.around(method, before, after)


def _record(observer: Observer, values: dict[str, Any]) -> None:
    rec, names = observer.rec, observer.names
    if rec is None or rec is not record_writer.current:
        return
    for name in [n for n in values if n not in names]:
        if len(names) < _NAMES:
            names.add(name)
        else:
            del values[name]
            if not observer.names_left_out:
                observer.names_left_out = True
                rec.write(Warning(f"values go to a logger under more than {_NAMES} names: those of "
                                  f"the first {_NAMES} are recorded"))
    rec.logged(values)


def numbers(values: Any, prefix: str = "") -> dict[str, Any]:
    """The entries of `values` that are numbers or tensors of one element. Entries of inner mappings
    are named "outer.inner"."""
    found: dict[str, Any] = {}
    for name, value in values.items() if isinstance(values, Mapping) else ():
        if isinstance(value, Mapping):
            found |= numbers(value, f"{prefix}{name}.")
        elif _is_number(value):
            found[f"{prefix}{name}"] = value
    return found


def _is_number(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    if isinstance(value, (int, float)):
        return True
    if hasattr(value, "detach"):
        return value.numel() == 1 and not value.is_complex()
    return getattr(value, "shape", None) == () and hasattr(value, "__float__")  # numpy's
