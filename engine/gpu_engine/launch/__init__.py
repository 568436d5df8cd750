"""From a spec to a run that goes on without us: launched, resumed, kept alive after a logout.

`gpu_engine.launch(spec)` is what other people's scripts call. Once anything below this package has
been imported, `gpu_engine.launch` is the package and no longer the function that `gpu_engine`
hands out, so the package itself can be called.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu_engine.launch.launcher import Prepared, launch, prepare, prepare_check, resume, start

__all__ = ["Prepared", "launch", "prepare", "prepare_check", "resume", "start"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from gpu_engine.launch import launcher

        return getattr(launcher, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _Launch(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from gpu_engine.launch.launcher import launch

        return launch(*args, **kwargs)


sys.modules[__name__].__class__ = _Launch
