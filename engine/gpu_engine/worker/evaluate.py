"""Evaluation: each example once at any world size, and the same figure to the last bit.

The data is cut into chunks whose size does not depend on the number of ranks; chunk i is rank
i mod W's. Every chunk's sums are kept apart until all ranks' are together, then added in order,
in float64: the same additions whoever computed them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from gpu_engine.errors import UserError
from gpu_engine.worker.data import Reader, move, pin
from gpu_engine.worker.precision import Precision
from gpu_engine.worker.process_group import Group
from gpu_engine.worker.task import Task


class Broken(Exception):
    """An evaluation failed on some rank; raised on all of them, so that they can go on together.

    `problem` is the error where it happened on this rank, None on the others.
    """

    def __init__(self, problem: Exception | None) -> None:
        super().__init__(problem)
        self.problem = problem


class Evaluation:
    """The held-out examples of a task, ready to be evaluated at any time."""

    def __init__(self, task: Task, data: Any, chunk: int, group: Group,
                 device: torch.device) -> None:
        """`chunk`: examples a forward pass."""
        self._task, self._data, self._chunk = task, data, chunk
        self._group, self._device = group, device
        default = type(task).collate is Task.collate
        self._reader = None if isinstance(data, IterableDataset) else Reader(
            data, task.collate, default)

    def run(self, model: nn.Module, precision: Precision,
            stopped: Callable[[], bool] = lambda: False) -> dict[str, float] | None:
        """Each metric's mean over all examples; None where a rank was asked to stop meanwhile.

        All ranks call it together. Every module of `model` is in the mode afterwards in which
        it was. Raises Broken where data, model or metrics raise, or metrics lack "count" or have
        other names from one call to the next (UserError).
        """
        problem: Exception | None = None
        before = [(module, module.training) for module in model.modules()]
        model.eval()
        mine: dict[int, dict[str, Tensor]] = {}
        number = -1
        try:
            with torch.no_grad(), precision.autocast():
                for number, batch in self._chunks():
                    if batch is None:
                        continue
                    sums = self._task.metrics(model, move(batch, self._device))
                    mine[number] = {k: torch.as_tensor(v).detach().double()
                                    for k, v in sums.items()}
                    if stopped():
                        break
        except Exception as err:  # noqa: BLE001 - raised again below, when all ranks know
            problem = err
        finally:
            for module, training in before:  # each its own: some are frozen, in a model that trains
                module.training = training
        self._group.meet()  # one may have been slower by more than a collective waits
        chunks, halted, failed = self._group.agree(
            [number + 1, float(stopped()), float(problem is not None)])
        if failed:
            raise Broken(problem) from problem
        if halted:
            return None
        return self._together(mine, int(chunks))

    def _chunks(self) -> Iterator[tuple[int, Any]]:
        """(number, batch) of this rank's chunks; batch None for the others'."""
        rank, ranks = self._group.rank, self._group.size
        if self._reader is not None:
            examples = len(self._reader)
            for number, start in enumerate(range(0, examples, self._chunk)):
                if number % ranks == rank:
                    indices = torch.arange(start, min(start + self._chunk, examples))
                    yield number, pin(self._reader.read(indices), self._device)
                else:
                    yield number, None
            return
        for number, examples in enumerate(_grouped(iter(self._data), self._chunk)):
            own = number % ranks == rank
            yield number, pin(self._task.collate(examples), self._device) if own else None

    def _together(self, mine: dict[int, dict[str, Tensor]], chunks: int) -> dict[str, float]:
        if chunks == 0:
            return {}
        # Rank 0 has chunk 0; a rank without a chunk knows no names.
        names = json.loads(self._group.from_first(
            json.dumps(list(mine[0]) if self._group.rank == 0 else [])))
        wrong = [set(m) ^ set(names) for m in mine.values() if set(m) != set(names)]
        odd = bool(wrong) or "count" not in names
        if self._group.agree([float(odd)])[0]:
            raise Broken(UserError(
                f"{type(self._task).__name__}.metrics must give \"count\" and the same names in "
                f"every call; {sorted(wrong[0]) if wrong else names}") if odd else None)
        table = torch.zeros(chunks, len(names), dtype=torch.float64)
        for number, sums in mine.items():
            table[number] = torch.stack([sums[n].to("cpu") for n in names])
        totals = dict(zip(names, self._group.sum(table).sum(0).tolist(), strict=True))
        count = totals.pop("count")
        return {name: total / count if count else float("nan") for name, total in totals.items()}


def _grouped(source: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while group := [x for _, x in zip(range(size), source, strict=False)]:
        yield group
