"""gpu_engine: plans, launches and watches PyTorch training runs; trains them too.

Everything public is imported on first use, so that importing this package costs nothing and
brings in no torch.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers know it, without importing typing
if TYPE_CHECKING:
    from typing import Any

    from gpu_engine.launch.launcher import launch
    from gpu_engine.spec.schema import RunSpec
    from gpu_engine.training.task import Task

__all__ = ["RunSpec", "Task", "launch", "log"]
__version__ = "0.1.0"

_WHERE = {
    "Task": "gpu_engine.training.task",
    "RunSpec": "gpu_engine.spec.schema",
    "launch": "gpu_engine.launch.launcher",
}


def log(**values: float) -> None:
    """Add named values to this rank's record; outside a run it does nothing.

    Values are numbers (anything `float()` takes; a tensor is read later, off the step).
    """
    import sys

    # Under the second name in a script that the panel observes (observe/install.py).
    for name in ("gpu_engine.worker.rank.current", "_gpu_panel.worker.rank.current"):
        current = sys.modules.get(name)
        if current is not None and current.recorder is not None:
            current.recorder.metric(values)
            return


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        from importlib import import_module

        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
