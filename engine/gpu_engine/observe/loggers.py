"""Values that a script hands to a logger become values of its run: TensorBoard, W&B, Lightning,
Fabric, accelerate, transformers.

None of these is imported by us. Their methods are wrapped once the script has imported them; what
a method does, returns and raises stays as it is. Only numbers are taken.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ..worker.rank import current
from .observer import Observer

Read = Callable[..., Any]


def _scalar(tag: Any, scalar_value: Any, *_: Any, **__: Any) -> Any:
    return {tag: scalar_value}


def _scalars(main_tag: Any, tag_scalar_dict: Any, *_: Any, **__: Any) -> Any:
    return {f"{main_tag}/{tag}": value for tag, value in tag_scalar_dict.items()}


def _metrics(metrics: Any, *_: Any, **__: Any) -> Any:
    return metrics


def _data(data: Any, *_: Any, **__: Any) -> Any:
    return data


def _values(values: Any, *_: Any, **__: Any) -> Any:
    return values


def _logs(args: Any, state: Any, control: Any, logs: Any = None, *_: Any, **__: Any) -> Any:
    return logs


_WRITER = (("SummaryWriter", "add_scalar", _scalar), ("SummaryWriter", "add_scalars", _scalars))
_LIGHTNING = (("_LoggerConnector", "log_metrics", _metrics),)
_FABRIC = (("Fabric", "log_dict", _metrics),)
_WHERE: dict[str, tuple[tuple[str, str, Read], ...]] = {
    "torch.utils.tensorboard.writer": _WRITER,
    "tensorboardX.writer": _WRITER,
    "wandb.sdk.wandb_run": (("Run", "log", _data),),
    "lightning.pytorch.trainer.connectors.logger_connector.logger_connector": _LIGHTNING,
    "pytorch_lightning.trainer.connectors.logger_connector.logger_connector": _LIGHTNING,
    "lightning.fabric.fabric": _FABRIC,
    "lightning_fabric.fabric": _FABRIC,
    "accelerate.accelerator": (("Accelerator", "log", _values),),
    "transformers.trainer_callback": (("CallbackHandler", "on_log", _logs),),
}
"""Module → its classes, their methods, and for each a function that takes the method's arguments
and returns the values among them."""
_NAMES = 300
"""At most so many names of values are recorded of a process."""


def wrap_all(observer: Observer) -> None:
    """Wrap the loggers that are imported by now, and have the others wrapped once they are."""
    for name in _WHERE:
        module = sys.modules.get(name)
        if module is not None:
            _wrap(observer, module)
    # Behind everything but the finder of paths, which finds all of these.
    sys.meta_path.insert(-1, _Finder(observer))


class _Finder:
    """On sys.meta_path: has the modules above wrapped when they are imported."""

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
                try:
                    self._wrap_once_loaded(spec.loader)
                except Exception as err:  # noqa: BLE001 - never the script's problem
                    self._observer.fault(err)
                return spec
        return None

    def _wrap_once_loaded(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)  # what it raises is the program's
            vars(loader).pop("exec_module", None)
            _wrap(self._observer, module)

        loader.exec_module = exec_module


def _wrap(observer: Observer, module: Any) -> None:
    try:
        for name, method, read in _WHERE[module.__name__]:
            cls = getattr(module, name, None)
            if isinstance(cls, type) and callable(vars(cls).get(method)):
                setattr(cls, method, _around(observer, vars(cls)[method], read))
    except Exception as err:  # noqa: BLE001 - never the script's problem
        observer.fault(err)


def _around(observer: Observer, method: Any, read: Read) -> Any:
    @functools.wraps(method)
    def observed(self: Any, *args: Any, **kwargs: Any) -> Any:
        values = None
        if not observer.off and observer.rec is not None:
            try:
                values = numbers(read(*args, **kwargs))
            except Exception:  # noqa: BLE001 - called wrongly, as the method itself will say
                values = None
        result = method(self, *args, **kwargs)
        if values:
            try:
                _record(observer, values)
            except Exception as err:  # noqa: BLE001
                observer.fault(err)
        return result

    return observed


def _record(observer: Observer, values: dict[str, Any]) -> None:
    rec, names = observer.rec, observer.names
    if rec is None or rec is not current.recorder:
        return
    for name in [n for n in values if n not in names]:
        if len(names) < _NAMES:
            names.add(name)
        else:
            del values[name]
    rec.logged(values)


def numbers(values: Any, prefix: str = "") -> dict[str, Any]:
    """What of `values` is a number, or a tensor of one element; also of mappings inside of it, as
    "outer.inner"."""
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
