"""Evaluation: uses each example once, with the same result to the last bit at any world size.

The data is cut into chunks whose size does not depend on the number of ranks: with W ranks, rank
i mod W reads chunk i. If an iterable dataset divides itself, each of its readers has chunks of its
own instead. The sums of each chunk are kept apart until those of all ranks are together. Then they
are added in the order of the chunks, in float64, so it does not matter which rank computed which.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from gpu_engine.common.errors import UserError
from gpu_engine.training import rng
from gpu_engine.training.data import Reader, Request, map_loader, move, pin, tensor_bytes
from gpu_engine.training.precision import Precision
from gpu_engine.training.rng import mix
from gpu_engine.training.stream import StreamReader, divided_by, stream_loader
from gpu_engine.training.task import Task, has_default_collate
from gpu_engine.worker.rank.group import Group

SEED = 0xE7A1
"""The seed of every evaluation, whatever the run's, so that all draw the same random numbers."""


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
        say what it divides itself by (`divided_by`)."""
        self._task, self._group = task, group
        self._device, self._devices = device, [device, *(others or [])]
        by = divided_by(data, task, ranks=group.size, workers=workers) \
            if isinstance(data, IterableDataset) else None
        self._chunks = HeldOut(
            data, chunk, by, rank=group.rank, ranks=group.size, workers=workers, device=device,
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
                    rng.seed_here(mix(SEED, number, 1), self._devices)
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
        """A value of `Task.metrics`, shape (), in float64."""
        found = torch.as_tensor(value).detach()
        if found.numel() != 1:
            raise UserError(f"{type(self._task).__name__}.metrics gives {name!r} the shape "
                            f"{tuple(found.shape)}: expected one number, the sum over the batch")
        return found.reshape(()).double()

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


class HeldOut:
    """One rank's chunks of a dataset, which can be read any number of times."""

    def __init__(self, data: Any, chunk: int, by: frozenset[str] | None = None, *, rank: int,
                 ranks: int, workers: int, device: torch.device, collate: Callable,
                 default_collate: bool) -> None:
        """`by`: None for a map-style dataset, or what an iterable one divides itself by. `chunk`:
        examples in a chunk; the last may be smaller. `workers`: how many loader workers; they start
        at the first reading and are kept."""
        self._device = device
        self._loader: DataLoader | None = None
        self._stream: StreamReader | None = None
        if by is not None:
            self._stream = StreamReader(
                data, by, rank=rank, ranks=ranks, size=chunk, collate=collate, seed=SEED,
                partial=True)
            self._loader = stream_loader(self._stream, workers, mix(SEED, rank), device)
            return
        self._reader = Reader(data, collate, default_collate)
        self._examples, self._chunk = len(data), chunk
        self._numbers = range(rank, -(-self._examples // chunk), ranks)
        workers = min(workers, len(self._numbers))
        if workers and not self._reader.only_indexes_tensors:
            self._loader = map_loader(self._reader, self._requests, workers=workers,
                                      seed=mix(SEED, rank), device=device)

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """(number, batch) of each chunk of this rank. Batches are on the host, in pinned memory if
        the device is a GPU."""
        if self._stream is not None:
            yield from self._streamed(self._stream)
        elif self._loader is not None:
            # The loader first, so that it comes to its own end.
            for batch, number in zip(self._loader, self._numbers):
                yield number, batch
        else:
            for number in self._numbers:
                yield number, pin(self._reader.read_here(mix(SEED, number), self._range(number)),
                                  self._device)

    def _streamed(self, stream: StreamReader) -> Iterator[tuple[int, Any]]:
        here = self._loader is None
        for item in stream if self._loader is None else self._loader:
            if item.rest is None:
                yield item.number, pin(item.batch, self._device) if here else item.batch

    def _requests(self) -> Iterator[Request]:
        return (Request(mix(SEED, number), None, tensor_bytes(self._range(number)))
                for number in self._numbers)

    def _range(self, number: int) -> torch.Tensor:
        start = number * self._chunk
        return torch.arange(start, min(start + self._chunk, self._examples))
