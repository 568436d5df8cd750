"""In a run with a rank that has a terminal (`run.debug_rank`), the process groups of a person's own
script wait longer: a person in the debugger takes longer than torch's half an hour, or ten minutes
under NCCL."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from typing import Any

from . import frames


def wait_longer() -> None:
    """Have the groups that this process makes from now on wait as long as the plan says. Groups
    that torch makes by itself, as for a mesh of devices, keep torch's time."""
    dist = import_module("torch.distributed")
    seconds = float(os.environ.get("GPU_PANEL_TIMEOUT", 0))
    if not seconds or not dist.is_available():
        return
    for name in ("init_process_group", "new_group"):
        patient = _patient(getattr(dist, name), timedelta(seconds=seconds))
        for module in (dist, import_module("torch.distributed.distributed_c10d")):
            setattr(module, name, patient)


def _patient(make: Callable[..., Any], time: timedelta) -> Callable[..., Any]:
    signature = inspect.signature(make)

    @frames.unseen
    @functools.wraps(make)
    def patient(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs)
            given.arguments["timeout"] = time
            return make(*given.args, **given.kwargs)
        except BaseException as err:
            frames.leave_out_ours(err)
            raise

    return patient
