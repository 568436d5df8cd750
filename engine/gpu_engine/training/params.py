"""Makes a Task object from `task.use` and `task.params`. Its errors say what would be right."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import sys
import sysconfig
import traceback
import types
from pathlib import Path
from typing import Any

from gpu_engine.common import values as value_types
from gpu_engine.common.errors import UserError, meant
from gpu_engine.common.files import expanded
from gpu_engine.common.records import known_hints_of
from gpu_engine.training.task import Task


class TaskError(UserError):
    """The task can't be found or imported, or its parameters are wrong."""

    title = "The task does not fit"


def load(ref: str) -> type[Task]:
    """The class that "module:Class" or "path/to/file.py:Class" means.

    A relative path starts at the working folder. Modules are looked for there first too, as
    `python -m` does. Raises TaskError, which says where it looked and why it failed.
    """
    where, colon, name = ref.rpartition(":")
    if not colon or not where or not name:
        raise TaskError(f"task.use = {ref!r}: expected module:Class or path/to/file.py:Class")
    module = _from_file(where, ref) if where.endswith(".py") else _from_module(where, ref)
    found = getattr(module, name, None)
    if found is None:
        others = [n for n, v in vars(module).items()
                  if isinstance(v, type) and issubclass(v, Task) and v is not Task]
        raise TaskError(f"task.use = {ref!r}: {where} has no {name}; "
                        + meant(name, others, "it has"))
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise TaskError(f"task.use = {ref!r}: {name} is not a subclass of gpu_engine.Task")
    return found


def build(cls: type[Task], params: dict[str, Any]) -> Task:
    """An object of `cls` with `params`, which it has checked. Raises TaskError, which lists every
    wrong parameter."""
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init} \
        if dataclasses.is_dataclass(cls) else {}
    hints = known_hints_of(cls)
    kinds = {name: value_types.kind_of(hints.get(name, Any)) for name in fields}
    wrong, values = [], {}
    for name, value in params.items():
        if name not in fields:
            wrong.append(f"task.params.{name}: {cls.__name__} has no such parameter; "
                         + meant(name, fields, "it has"))
            continue
        try:
            values[name] = value_types.convert(value, kinds[name])
        except ValueError as err:
            wrong.append(f"task.params.{name} = {value!r}: {err}")
    wrong += [f"task.params.{n}: {cls.__name__} needs it, and it has no default"
              for n, f in fields.items() if n not in params
              and f.default is f.default_factory is dataclasses.MISSING]
    if wrong:
        raise TaskError("\n".join(wrong))
    try:
        task = cls(**values)
    except (ValueError, TypeError) as err:
        raise TaskError(f"task.params: {cls.__name__} refuses them: {err}") from err
    # As the object has them now: defaults count too, and a __post_init__ may have changed any.
    has = {name: getattr(task, name, None) for name in fields}
    try:
        amiss = list(value_types.amiss(has, kinds, Path.cwd()).items()) or list(task.check() or ())
    except ValueError as err:
        raise TaskError(f"task.params: {cls.__name__} refuses them: {err}") from err
    if amiss:
        raise TaskError("\n".join(f"task.params.{name} = {has.get(name)!r}: {why}"
                                  for name, why in amiss))
    return task


def _from_module(where: str, ref: str) -> types.ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(where)
    except Exception as err:
        if isinstance(err, ModuleNotFoundError) and f"{where}.".startswith(f"{err.name}."):
            raise TaskError(f"task.use = {ref!r}: no module {where!r}, neither installed in "
                            f"{sys.prefix} nor in {here}") from None
        raise TaskError(f"task.use = {ref!r}: importing {where} failed: {_where(err)}") from err


def _from_file(where: str, ref: str) -> types.ModuleType:
    path = expanded(where).absolute()
    if not path.is_file():
        raise TaskError(f"task.use = {ref!r}: no file {path}")
    # Modules next to the file can be imported, as when Python runs the file.
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    name = f"gpu_panel_task_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TaskError(f"task.use = {ref!r}: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look it up there
    try:
        spec.loader.exec_module(module)
    except Exception as err:
        del sys.modules[name]
        raise TaskError(f"task.use = {ref!r}: {path} failed to import: {_where(err)}") from err
    return module


def _where(err: BaseException) -> str:
    """The error and its line: the innermost line of the person's own code, as a line inside a
    library says little."""
    if isinstance(err, SyntaxError):
        return f"line {err.lineno}: {err.msg}"
    libraries = ("<", __file__, *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))
    own = [f"{frame.filename}, line {frame.lineno}: "
           for frame in traceback.extract_tb(err.__traceback__)
           if not frame.filename.startswith(libraries)]
    return f"{(own or [''])[-1]}{type(err).__name__}: {err}"


