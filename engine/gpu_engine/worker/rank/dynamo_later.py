"""Ranks import torch._dynamo only once something compiles.

Optimizers and DDP import it for the case that they are compiled. That takes a second of a rank's
start and 70 MB of its memory, and nothing in this engine compiles. `install` puts a stand-in in its
place with the few functions that they call, which do nothing as long as nothing is compiled.
Whatever else is asked for, for example by a task that calls torch.compile, imports the real one,
and the stand-in becomes the same.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

_NAME = "torch._dynamo"
_swapping = threading.Lock()


def install() -> None:
    """Put the stand-in in place, unless torch._dynamo has been imported. To be called when torch
    has been."""
    import torch

    if _NAME in sys.modules:
        return
    stand_in = _StandIn(Path(torch.__file__).parent / "_dynamo")
    sys.modules[_NAME] = stand_in
    torch._dynamo = stand_in  # pyright: ignore[reportAttributeAccessIssue]
    sys.meta_path.insert(0, _Submodules(stand_in))


class _StandIn(ModuleType):
    """What optimizers, process groups and DDP call. Any other attribute imports the real module."""

    def __init__(self, folder: Path) -> None:
        super().__init__(_NAME)
        self.__file__ = str(folder / "__init__.py")
        self.__path__ = [str(folder)]
        self.__spec__ = PathFinder.find_spec(_NAME, [str(folder.parent)])
        self.parts = [_Part("utils", self, get_optimize_ddp_mode=lambda: "ddp_optimizer"),
                      _Part("trace_rules", self, clear_lru_cache=lambda: None)]
        self.to_disable: list[tuple[Any, bool]] = []
        vars(self).update(
            {part.__name__.rpartition(".")[2]: part for part in self.parts},
            disable=self._disable, graph_break=lambda *args, **options: None)

    def _disable(self, *args: Any, **options: Any) -> Callable[..., Any]:
        """Functions of torch itself run as they are, and are kept from being compiled when
        something can compile. Everybody else gets what the real function returns."""
        if len(args) == 2 and isinstance(args[1], bool) and options == {"wrapping": False}:
            self.to_disable.append((args[0], args[1]))
            return args[0]
        return self.swap().disable(*args, **options)

    def __getattr__(self, name: str) -> Any:
        _refuse_special(name)
        return getattr(self.swap(), name)

    def swap(self) -> ModuleType:
        """Import the real module in place of this one, which becomes the same, and return it."""
        import torch

        with _swapping:
            if sys.modules.get(_NAME) is self:
                del sys.modules[_NAME]
                del torch._dynamo  # pyright: ignore[reportAttributeAccessIssue]
        real = importlib.import_module(_NAME)
        with _swapping:
            while self.to_disable:
                function, recursive = self.to_disable.pop()
                # Where torch/_compile.py keeps what it calls in place of the function.
                setattr(function, "__dynamo_disable",
                        real.disable(function, recursive, wrapping=False))
            for part in self.parts:
                _become(part, importlib.import_module(part.__name__))
            _become(self, real)
        return real


class _Part(ModuleType):
    """A submodule of the stand-in."""

    def __init__(self, name: str, whole: _StandIn, **contents: Any) -> None:
        super().__init__(f"{_NAME}.{name}")
        self.whole = whole
        vars(self).update(contents)

    def __getattr__(self, name: str) -> Any:
        _refuse_special(name)
        self.whole.swap()
        return getattr(importlib.import_module(self.__name__), name)


def _refuse_special(name: str) -> None:
    """Raise AttributeError for names such as __wrapped__, for which `inspect` and others ask every
    module."""
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module {_NAME!r} has no attribute {name!r}")


def _become(stand_in: ModuleType, real: ModuleType) -> None:
    """Make `stand_in`, which somebody may have kept, the same as `real`."""
    if type(stand_in) is not ModuleType:
        vars(stand_in).clear()
        vars(stand_in).update(vars(real))
        stand_in.__class__ = ModuleType


class _Submodules(MetaPathFinder):
    """The first on `sys.meta_path`: importing a submodule swaps, and finds it imported by that."""

    def __init__(self, stand_in: _StandIn) -> None:
        self._stand_in = stand_in

    def find_spec(self, fullname: str, path: Sequence[str] | None,
                  target: ModuleType | None = None) -> ModuleSpec | None:
        if not fullname.startswith(f"{_NAME}.") or sys.modules.get(_NAME) is not self._stand_in:
            return None
        self._stand_in.swap()
        module = sys.modules.get(fullname)
        if module is None:
            return None
        spec = ModuleSpec(fullname, _Imported(module))
        module.__spec__ = spec  # Python takes this one, as the module is there by now
        return spec


class _Imported(Loader):
    """Gives a module that has been imported. Without it, Python would run the file again."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
