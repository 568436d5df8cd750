"""The environment of a plan's processes, in one line for people. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpu_engine.common.clean import clean

if TYPE_CHECKING:
    from gpu_engine.plan.records import LaunchPlan

_RENDEZVOUS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK",
               "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_CHOICE = ("CUDA_", "ROCR_", "ZE_")
"""How the names of the variables begin that choose devices."""
_LONGEST = 44


def summary(plan: LaunchPlan) -> str:
    """The variables that are added to the environment. A value that all processes share is shown
    once, different values as a range:

    "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=2,0 · OMP_NUM_THREADS=1 · RANK=0…1 …".
    """
    names = list(dict.fromkeys(name for p in plan.processes for name in p.env))
    groups = ([n for n in names if n.startswith(_CHOICE)],
              [n for n in names if not n.startswith(_CHOICE) and n not in _RENDEZVOUS],
              [n for n in _RENDEZVOUS if n in names])
    return " · ".join(" ".join(_one(plan, name) for name in group) for group in groups if group)


def _one(plan: LaunchPlan, name: str) -> str:
    values = [p.env[name] for p in plan.processes if name in p.env]
    if name == "MASTER_PORT" and set(values) == {"0"}:
        return f"{name}=any free"
    return f"{name}={_merged(list(dict.fromkeys(values)))}"


def _merged(values: Sequence[str]) -> str:
    if len(values) == 1:
        return _short(values[0])
    numbers = [int(v) for v in values if v.isascii() and v.isdigit()]
    if len(numbers) == len(values) and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]}…{numbers[-1]}"
    shown = [_short(v) for v in values[:4]]
    return "|".join([*shown, "…"] if len(values) > 4 else shown)


def _short(value: str) -> str:
    """The value quoted for a shell; only the end of a long one (a path), which says more than its
    start."""
    text = clean(value)
    return shlex.quote(text) if len(text) <= _LONGEST else "…" + text[1 - _LONGEST:]
