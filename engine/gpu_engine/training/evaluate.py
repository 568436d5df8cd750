"""Evaluation: uses each example once, with the same result to the last bit at any world size.

The data is cut into chunks whose size does not depend on the number of ranks: with W ranks, rank
i mod W reads chunk i. If an iterable dataset divides itself, each of its readers has chunks of its
own instead. The sums of each chunk are kept apart until those of all ranks are together. Then they
are added in the order of the chunks, in float64, so it does not matter which rank computed which.
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
from gpu_engine.training.data import Reader, Request, loader, move
from gpu_engine.training.precision import Precision
from gpu_engine.training.rng import mix
from gpu_engine.training.stream import StreamReader
from gpu_engine.training.task import Task
from gpu_engine.worker.rank.group import Group

SEED = 0xE7A1
"""The seed of every evaluation, whatever the run's, so that all draw the same random numbers."""


class Evaluation:
    """The held-out examples of a task, ready to be evaluated at any time."""

    def __init__(self, task: Task, data: Any, chunk: int, group: Group,
                 devices: list[torch.device], workers: int = 0) -> None:
        """`chunk`: examples in a forward pass; `devices`: of this rank, batches go to the first;
        `workers`: how many loader workers. Raises UserError if a stream does not say what it
        divides itself by (`divided_by`)."""
        self._task, self._group, self._devices = task, group, devices
        self._numbers: range | None = None
        seed = mix(SEED, group.rank)
        if isinstance(data, IterableDataset):
            self._loader = loader(
                StreamReader(data, task, rank=group.rank, ranks=group.size, workers=workers,
                             size=chunk, seed=SEED, partial=True),
                workers, seed, devices[0], batch_size=None)
            return
        reader, examples = Reader(data, task), len(data)
        self._numbers = range(group.rank, -(-examples // chunk), group.size)
        requests = [Request(mix(SEED, number), None,
                            range(number * chunk, min((number + 1) * chunk, examples)))
                    for number in self._numbers]
        self._loader = loader(
            reader, 0 if reader.only_indexes else min(workers, len(requests)), seed, devices[0],
            batch_sampler=requests)

    def run(self, model: nn.Module, precision: Precision,
            stopped: Callable[[], bool] = lambda: False) -> dict[str, float] | None:
        """Each metric's mean over all examples; None if a rank was asked to stop meanwhile.

        All ranks call it together. Afterwards every module of `model` is in the same mode as
        before, and the random generators are as they were. Metrics that draw random numbers draw
        the same ones for a chunk each time, on any rank. Raises what data, model or metrics raise,
        and UserError if metrics lack "count" or their names change from call to call.
        """
        before = [(module, module.training) for module in model.modules()]
        model.eval()
        mine: dict[int, dict[str, Tensor]] = {}
        try:
            with torch.no_grad(), rng.untouched(self._devices):
                # The loader first, so that it comes to its own end.
                for number, batch in self._loader if self._numbers is None else (
                        (n, b) for b, n in zip(self._loader, self._numbers)):
                    rng.seed_here(mix(SEED, number, 1), self._devices)
                    with precision.autocast():  # the data is read outside, as in training
                        sums = self._task.metrics(model, move(batch, self._devices[0]))
                    mine[number] = {name: self._sum(name, value) for name, value in sums.items()}
                    if stopped():
                        break
        finally:
            _restore_modes(before)
        self._group.barrier()  # a rank may be later than the timeout of a collective allows
        if self._group.all_reduce_max([float(stopped())])[0]:
            return None
        texts = self._group.gather(json.dumps(
            {number: dict(zip(sums, torch.stack([*sums.values()]).tolist()))
             for number, sums in mine.items()}).encode())
        totals = self._add(texts) if texts else {}
        totals = json.loads(self._group.broadcast(json.dumps(totals)))
        count = totals.pop("count", 0)
        return {name: total / count if count else float("nan") for name, total in totals.items()}

    def _sum(self, name: str, value: Any) -> Tensor:
        """A value of `Task.metrics`, shape (), in float64, on its device."""
        total = torch.as_tensor(value).detach()
        if total.numel() != 1:
            raise UserError(f"{type(self._task).__name__}.metrics gives {name!r} the shape "
                            f"{tuple(total.shape)}: expected one number, the sum over the batch")
        return total.reshape(()).double().to(self._devices[0], non_blocking=True)

    def _add(self, texts: list[bytes]) -> dict[str, float]:
        """On rank 0, the totals of all ranks' chunks; {} for none."""
        totals: dict[str, float] = {}
        chunks = {int(number): sums for text in texts for number, sums in json.loads(text).items()}
        for _, sums in sorted(chunks.items()):
            totals = totals or dict.fromkeys(sums, 0.0)
            if sums.keys() != totals.keys() or "count" not in sums:
                raise UserError(f"{type(self._task).__name__}.metrics must give \"count\" and the "
                                f"same names in every call: {', '.join(totals)}; {', '.join(sums)}")
            for name, value in sums.items():
                totals[name] += value
        return totals


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
