"""The task's schedule over a run's attempts: stepped after each optimizer step or after each
evaluation, saved, and brought back to where it was.

Resumed as it was, it goes on from its saved state. Resumed under another length, learning rate or
parameters, it must be what a run with these values would have at this step. The schedules of
torch.optim keep the old length in their state, and some compute each rate from the one before,
so a saved state can't be bent to a new length: the new schedule is stepped from its beginning
instead, which costs about 3 µs a step. The optimizer's moments stay those of the checkpoint.
"""

from __future__ import annotations

import hashlib
import inspect
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from gpu_engine.common.errors import UserError
from gpu_engine.training.task import Task

_STEERED = {"lr", "initial_lr", "max_lr", "min_lr", "momentum", "betas", "max_momentum",
            "base_momentum"}
"""The options of a parameter group that torch.optim's schedules set."""

Options = list[dict[str, Any]]
"""Of each parameter group, all but its parameters."""


class Schedule:
    """What `Task.schedule` gave, None included."""

    def __init__(self, task: Task, optimizer: Optimizer, total: int | None, *, lr: float,
                 params: Mapping[str, Any], evaluates: bool) -> None:
        """Made on an optimizer that is new, for `total` steps, by a task of `params`.

        Raises UserError for a schedule that steps on an evaluation where there is none, or which
        of its values is not known.
        """
        self._optimizer = optimizer
        before = _options(optimizer)
        # Any: step() takes nothing, or the value of an evaluation (ReduceLROnPlateau).
        self._inner: Any = task.schedule(optimizer, total)
        self._fresh = _options(optimizer)
        self._steered = _STEERED | _differing(before, self._fresh)
        self.metric = _metric(task, self._inner, evaluates)
        """The evaluation's value that it steps on; None: it steps after each optimizer step."""
        self._values: list[float] = []
        self._outset = {"total": total, "lr": lr, "groups": self._fresh,
                        "digest": _digest([total, lr, params, self._fresh, self._state()])}

    def step(self) -> None:
        """The optimizer made a step (one that was left out does not count)."""
        if self._inner is not None and self.metric is None:
            self._inner.step()

    def evaluated(self, result: Mapping[str, float]) -> None:
        """There is a new evaluation. Raises UserError where it lacks the value to step on."""
        if self.metric is None:
            return
        if self.metric not in result:
            raise UserError(f"the schedule steps on the evaluation's {self.metric!r}, but it gives "
                            f"{', '.join(result) or 'nothing'}; set schedule_metric in the task")
        value = float(result[self.metric])
        self._values.append(value)
        self._inner.step(value)

    # --- saved and brought back ---------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {"schedule": self._state(), "outset": self._outset, "values": list(self._values)}

    def restore(self, state: Mapping[str, Any], taken: int) -> None:
        """Bring it to where it was after `taken` optimizer steps; the optimizer is as loaded.

        `state`: what `state_dict` gave, or of a checkpoint that was written before there was an
        outset in it.
        """
        self._values = list(state.get("values", ()))
        outset = state.get("outset")
        if outset is not None and outset["digest"] == self._outset["digest"]:
            if self._inner is not None and state["schedule"] is not None:
                self._inner.load_state_dict(state["schedule"])
            return
        loaded = _options(self._optimizer)
        before = outset["groups"] if outset is not None else self._fresh
        changed = self._steered | _differing(before, self._fresh)
        _set(self._optimizer, self._fresh)
        self._replay(taken)
        changed |= _differing(self._fresh, _options(self._optimizer))
        # Some optimizers keep what they learned among the options (Prodigy's d): that stays.
        _set(self._optimizer, [{k: v for k, v in group.items() if k not in changed}
                               for group in loaded])

    def _replay(self, taken: int) -> None:
        with warnings.catch_warnings():
            # Of its order with optimizer.step(), which here there is none of.
            warnings.filterwarnings("ignore", message=".*lr_scheduler", category=UserWarning)
            if self.metric is not None:
                for value in self._values:
                    self._inner.step(value)
            elif self._inner is not None:
                for _ in range(taken):
                    self._inner.step()

    def _state(self) -> dict[str, Any] | None:
        return self._inner.state_dict() if self._inner is not None else None


def _metric(task: Task, schedule: Any, evaluates: bool) -> str | None:
    """The name of the evaluation's value that `schedule` wants in `step`; None: it wants none."""
    if schedule is None:
        return None
    takes = inspect.signature(schedule.step).parameters
    if not any(p.name.startswith("metric") and p.default is p.empty for p in takes.values()):
        return None
    name = type(schedule).__name__
    if not evaluates:
        raise UserError(f"{name} steps on the value of an evaluation, and there is none: give "
                        "the task an eval_data, or another schedule")
    given = task.schedule_metric
    if given is None and getattr(schedule, "mode", "min") != "min":
        raise UserError(f"{name} waits for the largest of an evaluation's values: set "
                        "schedule_metric in the task to its name, as in \"accuracy\"")
    return given or "loss"


def _options(optimizer: Optimizer) -> Options:
    return [{k: v.clone() if isinstance(v, torch.Tensor) else v
             for k, v in group.items() if k != "params"} for group in optimizer.param_groups]


def _set(optimizer: Optimizer, options: Options) -> None:
    for group, values in zip(optimizer.param_groups, options, strict=True):
        group.update({k: v.clone() if isinstance(v, torch.Tensor) else v
                      for k, v in values.items()})


def _differing(some: Options, others: Options) -> set[str]:
    """The options that are not the same in both; all where there are more groups in one."""
    if len(some) != len(others):
        return {key for group in (*some, *others) for key in group}
    return {key for a, b in zip(some, others, strict=True) for key in a.keys() | b.keys()
            if key not in a or key not in b or _plain(a[key]) != _plain(b[key])}


def _digest(value: Any) -> str:
    return hashlib.sha256(repr(_plain(value)).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """`value` in plain values whose repr is the same in every process."""
    if isinstance(value, torch.Tensor):
        return ["tensor", str(value.dtype), value.tolist()]
    if isinstance(value, Mapping):
        return [[str(k), _plain(value[k])] for k in sorted(value, key=str)]
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, bool | int | float | str | None):
        return value
    return f"{type(value).__module__}.{type(value).__qualname__}"
