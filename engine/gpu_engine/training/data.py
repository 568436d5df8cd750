"""Which examples a step uses, and how they are read.

The order is the same in every mode. With perm = permutation(seed, epoch) of the examples and G the
global batch, step s of an epoch uses perm[s·G : (s+1)·G]. That block is cut into slices of
`per_gpu` examples; with R replicas, replica r in backward pass a takes slice number a·R + r. A
last block of fewer than G examples is left out in every mode; as each epoch has another order,
each leaves out other examples.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from gpu_engine.common.errors import UserError
from gpu_engine.training.rng import OwnRandomness, mix
from gpu_engine.training.task import Task
from gpu_engine.worker.rank import process


class Request(NamedTuple):
    """Asks a `Reader` for one batch. Random numbers are drawn from a seed of its own, so they
    depend only on the position in the epoch, not on the number of loader workers or on where a run
    was resumed."""

    seed: int
    epoch: int | None
    """None for a batch outside of any epoch, as in an evaluation: `set_epoch` is not called."""
    indices: Sequence[int]
    """No tensor: it would travel to a loader worker through a file in shared memory, and a slice
    of the epoch's order would take the whole order along."""


@dataclass
class EpochSampler:
    """Which examples of an epoch a rank reads in each backward pass: a request for each."""

    examples: int
    global_size: int
    replicas: int
    accumulate: int
    seed: int = 0
    mine: range = range(1)
    """The replicas that this rank reads for, next to each other."""
    epoch: int = 0
    """The epoch of the next iteration."""
    start: int = 0
    """The step at which the next iteration starts."""

    @property
    def steps(self) -> int:
        """Optimizer steps in an epoch."""
        return self.examples // self.global_size

    def part(self, step: int, micro: int) -> slice:
        """The positions, in the epoch's order, of the examples that this rank reads in backward
        pass `micro` of `step`."""
        per_gpu = self.global_size // (self.replicas * self.accumulate)
        start = step * self.global_size + (micro * self.replicas + self.mine.start) * per_gpu
        return slice(start, start + len(self.mine) * per_gpu)

    def __iter__(self) -> Iterator[Request]:
        epoch, order = self.epoch, permutation(self.seed, self.epoch, self.examples)
        for step in range(self.start, self.steps):
            for micro in range(self.accumulate):
                part = self.part(step, micro)
                yield Request(mix(self.seed, epoch, part.start), epoch, order[part].tolist())


def permutation(seed: int, epoch: int, examples: int) -> Tensor:
    """The epoch's order, the same on every rank: shape (examples,). It is int32 where that is
    enough, to save memory, and int64 otherwise; randperm draws the same numbers for both."""
    generator = torch.Generator().manual_seed(mix(seed, epoch))
    dtype = torch.int32 if examples < 2 ** 31 else torch.int64
    return torch.randperm(examples, generator=generator, dtype=dtype)


class Reader(Dataset):
    """Reads whole batches of a map-style dataset: with its `get_batch`, by indexing the tensors of
    a TensorDataset, or example by example with the task's `collate`."""

    def __init__(self, data: Any, task: Task) -> None:
        self._data, self._collate = data, task.collate
        self._get_batch = getattr(data, "get_batch", None)
        self.only_indexes = type(data) is TensorDataset and getattr(
            task.collate, "__func__", None) is Task.collate
        """Whether reading only indexes tensors, which is too little work for loader workers."""
        self._epoch: int | None = None

    def __getitems__(self, request: Request) -> Any:
        """The batch for a request. DataLoader passes what its batch sampler gives to this method,
        unchanged."""
        indices = request.indices
        if request.epoch not in (None, self._epoch):  # each worker has its own copy of the dataset
            self._epoch = request.epoch
            with OwnRandomness(mix(0xE70C, request.epoch)):
                tell_epoch(self._data, request.epoch)
        if self.only_indexes:  # the same as default_collate of the single examples, but faster
            rows = torch.tensor(indices)
            return [t[rows].contiguous() for t in self._data.tensors]
        with OwnRandomness(request.seed):
            if self._get_batch is not None:
                return self._get_batch(torch.tensor(indices))
            many = getattr(self._data, "__getitems__", None)
            return self._collate(many(list(indices)) if many else
                                 [self._data[i] for i in indices])


def tell_epoch(data: Any, epoch: int) -> None:
    """Call the dataset's `set_epoch` if it has one, or that of the dataset that it is a Subset
    of."""
    if hasattr(data, "set_epoch"):
        data.set_epoch(epoch)
    elif isinstance(data, Subset):
        tell_epoch(data.dataset, epoch)


def loader(data: Dataset, workers: int, seed: int, device: torch.device, **how: Any) -> DataLoader:
    """A loader of batches that come ready-made, in pinned memory for a GPU: copies from ordinary
    memory would wait for it. Its workers live over all epochs; with none, the rank itself reads."""
    if workers:
        process.prepare_sockets()
    if device.type == "cpu":  # its cores are a slot's, of whose number nobody wants to be warned
        warnings.filterwarnings("ignore", "This DataLoader will create")
    return DataLoader(
        data, num_workers=workers, collate_fn=_unchanged, pin_memory=device.type == "cuda",
        persistent_workers=workers > 0, worker_init_fn=process.in_loader_worker,
        multiprocessing_context="fork" if workers else None, **how,
        generator=torch.Generator().manual_seed(seed))  # so that it does not use the global one


def _unchanged(batch: Any) -> Any:
    return batch


class MapData:
    """Training batches of a map-style dataset, for one rank."""

    def __init__(self, data: Any, task: Task, sampler: EpochSampler, *, workers: int,
                 device: torch.device, copies: Callable[[], None] = lambda: None) -> None:
        """`workers`: how many loader workers; `device`: where batches go; `copies` is called before
        a batch is copied to the device.
        Raises UserError if the data is smaller than one global batch."""
        if sampler.examples < sampler.global_size:
            raise UserError(f"batch.size: a global batch takes {sampler.global_size} examples, but "
                            f"the training data has only {sampler.examples}")
        self._sampler, self._device, self._copies = sampler, device, copies
        self._loader = loader(Reader(data, task), workers, mix(sampler.seed, sampler.mine.start),
                              device, batch_sampler=sampler)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """The epoch's batches on the device, one for each backward pass, from step `start` on."""
        self._sampler.epoch, self._sampler.start = epoch, start
        return on_device(self._loader, self._device, self._copies)


def on_device(batches: Iterable[Any], device: torch.device, copies: Callable[[], None]
              ) -> Iterator[Any]:
    """The batches on `device`. `copies` is called before each is copied there."""
    for batch in batches:
        if device.type == "cpu":
            yield batch
        else:
            copies()
            yield move(batch, device)


def move(batch: Any, device: torch.device) -> Any:
    """The batch on `device`: tensors in tuples, lists and dicts, and anything else with `.to`.
    Copies from pinned memory do not wait."""
    if device.type == "cpu":
        return batch
    if hasattr(batch, "to"):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {k: move(v, device) for k, v in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move(v, device) for v in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(move(v, device) for v in batch)
    return batch
