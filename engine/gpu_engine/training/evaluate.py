"""Evaluation: uses each example once, with the same result to the last bit at any world size.

The data is cut into chunks whose size does not depend on the number of ranks (see `held_out`). The
sums of each chunk are kept apart until those of all ranks are together. Then they are added in
the order of the chunks, in float64, so it does not matter which rank computed which chunk.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from gpu_engine.common.errors import UserError
from gpu_engine.training import rng
from gpu_engine.training.accumulation_dtype import wide
from gpu_engine.training.data import move
from gpu_engine.training.division import known_division
from gpu_engine.training.eval_chunks import SEED, HeldOut
from gpu_engine.training.precision import Precision
from gpu_engine.training.task import Task, has_default_collate
from gpu_engine.worker.rank.process_group import Group


class EvaluationFailed(Exception):
    """An evaluation failed on some rank. It is raised on all ranks, so that they act alike.

    `problem` is the error itself on the rank where it happened, and None on the others.
    """

    def __init__(self, problem: BaseException | None) -> None:
        super().__init__(problem)
        self.problem = problem


class Evaluation:
    """The held-out examples of a task, ready to be evaluated at any time."""

    def __init__(self, task: Task, data: Any, chunk: int, group: Group,
                 device: torch.device, *, others: list[torch.device] | None = None,
                 workers: int = 0) -> None:
        """`chunk`: examples in a forward pass; `device`: where batches go; `others`: this rank's
        further devices; `workers`: how many loader workers. Raises UserError if a stream does not
        say what it divides itself by (`known_division`)."""
        self._task, self._group = task, group
        self._device, self._devices = device, [device, *(others or [])]
        if isinstance(data, IterableDataset):
            data = known_division(data, task, rank=group.rank, ranks=group.size, workers=workers)
        self._chunks = HeldOut(
            data, chunk, rank=group.rank, ranks=group.size, workers=workers, device=device,
            collate=task.collate, default_collate=has_default_collate(task))

    def run(self, model: nn.Module, precision: Precision,
            stopped: Callable[[], bool] = lambda: False) -> dict[str, float] | None:
        """Each metric's mean over all examples; None if a rank was asked to stop meanwhile.

        All ranks call it together. Afterwards every module of `model` is in the same mode as
        before, and the random generators are as they were. Metrics that draw random numbers draw
        the same ones for a chunk each time, on any rank. Raises EvaluationFailed if data, model or
        metrics raise, if metrics lack "count", or if their names change from call to call.
        """
        problem: BaseException | None = None
        before = [(module, module.training) for module in model.modules()]
        model.eval()
        mine: dict[int, dict[str, Tensor]] = {}
        try:
            with torch.no_grad(), rng.untouched(self._devices):
                for number, batch in self._chunks:
                    rng.seed_here(rng.mix(SEED, number, 1), self._devices)
                    with precision.autocast():  # the data is read outside, as in training
                        sums = self._task.metrics(model, move(batch, self._device))
                    mine[number] = {k: self._sum(k, v) for k, v in sums.items()}
                    if stopped():
                        break
        except BaseException as err:  # noqa: BLE001 - raised below, once all ranks know of it
            problem = err
        finally:
            _restore_modes(before)
        self._group.barrier()  # a rank may be later than the timeout of a collective allows
        chunks, halted, failed = self._group.all_reduce_max(
            [max(mine, default=-1) + 1, float(stopped()), float(problem is not None)])
        if failed:
            raise EvaluationFailed(problem) from problem
        if halted:
            return None
        return self._together(mine, int(chunks))

    def _sum(self, name: str, value: Any) -> Tensor:
        """A value of `Task.metrics`, shape (), in the widest type."""
        found = torch.as_tensor(value).detach()
        if found.numel() != 1:
            raise UserError(f"{type(self._task).__name__}.metrics gives {name!r} the shape "
                            f"{tuple(found.shape)}: expected one number, the sum over the batch")
        return wide(found.reshape(()))

    def _together(self, mine: dict[int, dict[str, Tensor]], chunks: int) -> dict[str, float]:
        if chunks == 0:
            return {}
        # A rank that had no chunk does not know the metrics' names.
        known = self._group.gather_bytes(json.dumps(list(next(iter(mine.values()), []))).encode())
        names = json.loads(self._group.broadcast(next(
            (text.decode() for text in known if len(text) > 2), "[]")))
        wrong = [set(m) ^ set(names) for m in mine.values() if set(m) != set(names)]
        odd = bool(wrong) or "count" not in names
        if self._group.all_reduce_max([float(odd)])[0]:
            raise EvaluationFailed(UserError(
                f"{type(self._task).__name__}.metrics must give \"count\" and the same names in "
                f"every call; {sorted(wrong[0]) if wrong else names}") if odd else None)
        table = torch.zeros(chunks, len(names), dtype=torch.float64)
        for number, sums in mine.items():
            table[number] = torch.stack([sums[n].to("cpu") for n in names])
        totals = dict(zip(names, self._group.all_reduce_sum(table).sum(0).tolist()))
        count = totals.pop("count")
        return {name: total / count if count else float("nan") for name, total in totals.items()}


def _restore_modes(before: list[tuple[nn.Module, bool]]) -> None:
    """Put each module back into its mode; `before` lists parents before their children.

    Each module's `train` is called first, as it may do more than set the flag: LoRA layers merge
    their weights for evaluation and split them for training. It also changes the children, of
    which some may be frozen, so each flag is set by itself afterwards.
    """
    for module, training in before:
        if module.training != training:
            module.train(training)
    for module, training in before:
        module.training = training
