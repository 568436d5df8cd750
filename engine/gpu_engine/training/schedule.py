"""The task's learning rate schedule: stepped after each optimizer step or each evaluation, saved
in checkpoints, and restored.

If nothing has changed, a resumed schedule goes on from its saved state. After a change of length,
learning rate or task parameters it must be as if the run had had the new values from its start.
The saved state can't be used then: torch.optim's schedules keep the old length in it, and some
compute each rate from the previous one. So the new schedule is stepped from the beginning, which
takes about 3 µs a step. The optimizer's moments stay those of the checkpoint.
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
"""For each parameter group, all its options, without its parameters."""


class Schedule:
    """The schedule that `Task.schedule` returned, which may be None."""

    def __init__(self, task: Task, optimizer: Optimizer, total: int | None, *, lr: float,
                 params: Mapping[str, Any], evaluates: bool) -> None:
        """Have `task`, which was built with `params`, make its schedule for a new `optimizer` and
        `total` steps (None: unknown). `evaluates`: whether the run has evaluations.

        Raises UserError if the schedule needs an evaluation's value and there are no evaluations,
        or the task does not say which value.
        """
        self._optimizer = optimizer
        before = _options(optimizer)
        # Any, as step() takes no argument, or a value of an evaluation (ReduceLROnPlateau).
        self._inner: Any = task.schedule(optimizer, total)
        self._fresh = _options(optimizer)
        self._steered = _STEERED | _differing(before, self._fresh)
        self.metric = _metric(task, self._inner, evaluates)
        """The name of the evaluation's value that the schedule steps on; None if it steps after
        each optimizer step."""
        self._values: list[float] = []
        self._outset = {"total": total, "lr": lr, "groups": self._fresh,
                        "digest": _digest([total, lr, params, self._fresh, self._state()])}

    def step(self) -> None:
        """Advance the schedule after an optimizer step. Not called for skipped steps."""
        if self._inner is not None and self.metric is None:
            self._inner.step()

    def evaluated(self, result: Mapping[str, float]) -> None:
        """Advance the schedule after an evaluation, if it steps on one. Raises UserError if the
        value it needs is missing."""
        if self.metric is None:
            return
        if self.metric not in result:
            raise UserError(f"the schedule steps on the evaluation's {self.metric!r}, but it gives "
                            f"{', '.join(result) or 'nothing'}; set schedule_metric in the task")
        value = float(result[self.metric])
        self._values.append(value)
        self._inner.step(value)

    # --- saved and restored -------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The schedule's part of a checkpoint."""
        return {"schedule": self._state(), "outset": self._outset, "values": list(self._values)}

    def restore(self, state: Mapping[str, Any], taken: int) -> None:
        """Bring the schedule to where it is after `taken` optimizer steps. The optimizer must be
        loaded already.

        `state` is what `state_dict` returned.
        """
        self._values = list(state.get("values", ()))
        outset = state.get("outset")  # checkpoints of the first versions lack it
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
        # Some optimizers keep learned values among their options, as Prodigy its d: keep those.
        _set(self._optimizer, [{k: v for k, v in group.items() if k not in changed}
                               for group in loaded])

    def _replay(self, taken: int) -> None:
        with warnings.catch_warnings():
            # torch warns if a schedule steps before its optimizer, which does not step here.
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
    """The name of the evaluation's value that `schedule.step` takes; None if it takes none."""
    if schedule is None:
        return None
    takes = inspect.signature(schedule.step).parameters
    if not any(p.name.startswith("metric") and p.default is p.empty for p in takes.values()):
        return None
    name = type(schedule).__name__
    if not evaluates:
        raise UserError(f"{name} steps on a value of the evaluation, but there is no evaluation: "
                        "give the task an eval_data, or another schedule")
    given = task.schedule_metric
    if given is None and getattr(schedule, "mode", "min") != "min":
        raise UserError(f"{name} expects a value of the evaluation to grow: set schedule_metric in "
                        "the task to the name of that value, such as \"accuracy\"")
    return given or "loss"


def _options(optimizer: Optimizer) -> Options:
    return [{k: v.clone() if isinstance(v, torch.Tensor) else v
             for k, v in group.items() if k != "params"} for group in optimizer.param_groups]


def _set(optimizer: Optimizer, options: Options) -> None:
    for group, values in zip(optimizer.param_groups, options):
        group.update({k: v.clone() if isinstance(v, torch.Tensor) else v
                      for k, v in values.items()})


def _differing(some: Options, others: Options) -> set[str]:
    """The names of options that differ; all names if the numbers of groups differ."""
    if len(some) != len(others):
        return {key for group in (*some, *others) for key in group}
    return {key for a, b in zip(some, others) for key in a.keys() | b.keys()
            if key not in a or key not in b or _plain(a[key]) != _plain(b[key])}


def _digest(value: Any) -> str:
    return hashlib.sha256(repr(_plain(value)).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """`value` as plain values, whose repr is the same in every process."""
    if isinstance(value, torch.Tensor):
        return ["tensor", str(value.dtype), value.tolist()]
    if isinstance(value, Mapping):
        return [[str(k), _plain(value[k])] for k in sorted(value, key=str)]
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    return f"{type(value).__module__}.{type(value).__qualname__}"
