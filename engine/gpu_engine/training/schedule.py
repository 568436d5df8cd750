"""The task's learning rate schedule: stepped after each optimizer step or each evaluation, and
brought to the present step in a resume.

A resumed schedule is as if the run had had its length, learning rate and parameters from its start,
changed or not. Its own state could not be used after a change: torch.optim's schedules keep the old
length in it, and some compute each rate from the previous one. So it is always stepped from the
beginning, which takes about 3 µs a step. The optimizer's moments stay those of the checkpoint.
"""

from __future__ import annotations

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

    def __init__(self, task: Task, optimizer: Optimizer, total: int | None, *, evaluates: bool
                 ) -> None:
        """Have `task` make its schedule for a new `optimizer` and `total` steps (None: unknown).
        `evaluates`: whether the run has evaluations.

        Raises UserError if the schedule needs an evaluation's value and there are no evaluations,
        or the task does not say which value.
        """
        self._optimizer = optimizer
        before = _options(optimizer)
        # Any, as step() takes no argument, or a value of an evaluation (ReduceLROnPlateau).
        self._inner: Any = task.schedule(optimizer, total)
        self._fresh = _options(optimizer)
        self._steered = _differing(before, self._fresh) | (
            _STEERED if self._inner is not None else set())
        self.metric = _metric(task, self._inner, evaluates)
        """The name of the evaluation's value that the schedule steps on; None if it steps after
        each optimizer step."""
        self._values: list[float] = []

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
        self._values.append(float(result[self.metric]))
        self._inner.step(self._values[-1])

    def state_dict(self) -> dict[str, Any]:
        """The schedule's part of a checkpoint: the options at its start, and the values of the
        evaluations that it has stepped on."""
        return {"options": self._fresh, "values": list(self._values)}

    def restore(self, state: Mapping[str, Any], taken: int) -> None:
        """Bring the schedule to where it is after `taken` optimizer steps. The optimizer must be
        loaded already. `state`: what `state_dict` returned; older checkpoints lack some of it."""
        self._values = list(state.get("values", ()))
        loaded = _options(self._optimizer)
        _set(self._optimizer, self._fresh)
        with warnings.catch_warnings():
            # torch warns if a schedule steps before its optimizer, which does not step here.
            warnings.filterwarnings("ignore", message=".*lr_scheduler", category=UserWarning)
            if self.metric is not None:
                for value in self._values:
                    self._inner.step(value)
            else:
                for _ in range(taken):
                    self.step()
        before = state.get("options", self._fresh)
        new = self._steered | _differing(before, self._fresh) | _differing(
            self._fresh, _options(self._optimizer))
        # Some optimizers keep learned values among their options, as Prodigy its d: keep those.
        _set(self._optimizer, [{k: v for k, v in group.items() if k not in new}
                               for group in loaded])


def _metric(task: Task, schedule: Any, evaluates: bool) -> str | None:
    """The name of the evaluation's value that `schedule.step` takes; None if it takes none."""
    if schedule is None or not any(
            p.name.startswith("metric") and p.default is p.empty
            for p in inspect.signature(schedule.step).parameters.values()):
        return None
    name = type(schedule).__name__
    if not evaluates:
        raise UserError(f"{name} steps on a value of the evaluation, but there is no evaluation: "
                        "give the task an eval_data, or another schedule")
    if task.schedule_metric is None and getattr(schedule, "mode", "min") != "min":
        raise UserError(f"{name} expects a value of the evaluation to grow: set schedule_metric in "
                        "the task to the name of that value, such as \"accuracy\"")
    return task.schedule_metric or "loss"


def _options(optimizer: Optimizer) -> Options:
    return list(map(_copied, optimizer.param_groups))


def _set(optimizer: Optimizer, options: Options) -> None:
    for group, values in zip(optimizer.param_groups, options):
        group.update(_copied(values))


def _copied(options: dict[str, Any]) -> dict[str, Any]:
    return {k: v.clone() if isinstance(v, torch.Tensor) else v
            for k, v in options.items() if k != "params"}


def _differing(some: Options, others: Options) -> set[str]:
    """The names of options that differ."""
    return {key for a, b in zip(some, others) for key in a.keys() | b.keys()
            if key not in a or key not in b or _plain(a[key]) != _plain(b[key])}


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, torch.Tensor) else value
