"""gpu_engine: plans, launches, trains and watches PyTorch runs.

Public names are imported on first use, so that importing this package is quick and leaves
torch alone.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers know it, without importing typing
if TYPE_CHECKING:
    from typing import Any

    from gpu_engine.common.values import Bounds, Existing
    from gpu_engine.places.verbs import launch
    from gpu_engine.spec.schema import RunSpec
    from gpu_engine.training.task import Task

__all__ = ["Bounds", "Existing", "RunSpec", "Task", "launch", "log"]
__version__ = "0.1.0"

_WHERE = {
    "Task": "gpu_engine.training.task",
    "Bounds": "gpu_engine.common.values",
    "Existing": "gpu_engine.common.values",
    "RunSpec": "gpu_engine.spec.schema",
    "launch": "gpu_engine.places.verbs",
}


def log(**values: float) -> None:
    """Add named values to this rank's record. Outside a run this does nothing; in a run, before
    torch is imported, it warns that it does nothing.

    A value is a number: anything that `float()` takes. A tensor is read later, so that the step
    does not wait for it.
    """
    import sys

    # An observed script has the recorder under the second name (observe/hook/sitecustomize.py).
    for package in ("gpu_engine", "_gpu_panel"):
        recorder = getattr(sys.modules.get(f"{package}.worker.rank.record_writer"), "current", None)
        if recorder is not None:
            recorder.metric(values)
            return
    if "torch" not in sys.modules:
        import os

        if os.environ.get("GPU_PANEL_RUN"):
            import warnings

            warnings.warn("gpu_engine.log: nothing is recorded of a process that has not imported "
                          "torch", stacklevel=2)


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        from importlib import import_module

        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
