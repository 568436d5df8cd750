"""Which examples a step sees, and reading them.

One order for every mode: with perm = permutation(seed, epoch) of the examples and G the global
batch, step s of an epoch uses perm[s·G : (s+1)·G]. Of that block, backward pass a and replica r
take the slice number a·R + r of `per_gpu` examples (R replicas). A last block of fewer than G
examples is left out, in every mode; the next epoch's order is another, so other examples stay
out.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import (
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    StackDataset,
    Subset,
    TensorDataset,
)

from gpu_engine.common.errors import UserError
from gpu_engine.training.rng import Draws, mix, seed_host
from gpu_engine.worker.rank.signals import in_loader_worker


@dataclass(frozen=True)
class EpochSampler:
    """Which examples of an epoch each replica reads in each backward pass, as positions in the
    epoch's order."""

    examples: int
    global_size: int
    replicas: int
    accumulate: int

    @property
    def per_gpu(self) -> int:
        """Examples of one replica in one backward pass."""
        return self.global_size // (self.replicas * self.accumulate)

    @property
    def steps(self) -> int:
        """Optimizer steps an epoch."""
        return self.examples // self.global_size

    @property
    def dropped(self) -> int:
        """Examples an epoch leaves out."""
        return self.examples % self.global_size

    def part(self, step: int, micro: int, first: int, count: int) -> slice:
        """Where in the epoch's order lie the examples of `count` replicas from `first` on, for
        backward pass `micro` of `step`."""
        start = step * self.global_size + (micro * self.replicas + first) * self.per_gpu
        return slice(start, start + count * self.per_gpu)


def permutation(seed: int, epoch: int, examples: int) -> Tensor:
    """The epoch's order, the same on every rank: shape (examples,), int32 where that holds them
    (randperm draws the same numbers for both), as each rank keeps it for the whole epoch."""
    generator = torch.Generator().manual_seed(mix(seed, epoch))
    dtype = torch.int32 if examples < 2 ** 31 else torch.int64
    return torch.randperm(examples, generator=generator, dtype=dtype)


class RankSampler:
    """A rank's part of an `EpochSampler`: for one epoch, a list of indices a backward pass.

    Each comes with a seed of its own, so that random augmentation in loader workers depends on
    the position alone: not on how many workers there are or where a run was resumed.
    """

    def __init__(self, sampler: EpochSampler, seed: int, first: int, count: int) -> None:
        """For the replicas `first` to `first + count - 1`."""
        self._whole, self._seed, self._first, self._count = sampler, seed, first, count
        self._epoch = self._start = 0

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Which epoch the next iteration deals, from step `start` on."""
        self._epoch, self._start = epoch, start

    def __len__(self) -> int:
        return (self._whole.steps - self._start) * self._whole.accumulate

    def __iter__(self) -> Iterator[tuple[int, Tensor]]:
        """(seed, indices) of each backward pass; indices int64, shape (n,), memory of their
        own."""
        sampler, epoch = self._whole, self._epoch
        order = permutation(self._seed, epoch, sampler.examples)
        for step in range(self._start, sampler.steps):
            for micro in range(sampler.accumulate):
                part = sampler.part(step, micro, self._first, self._count)
                yield mix(self._seed, epoch, part.start), order[part].to(torch.int64, copy=True)

    def requests(self) -> Iterator[Request]:
        """The same as what a loader worker is sent."""
        for seed, indices in self:
            yield Request(seed, self._epoch, tensor_bytes(indices))


class Request(NamedTuple):
    """A batch that a loader worker is to read.

    The indices are plain bytes: a tensor would travel through a file in shared memory, and a
    slice of the epoch's order would take the whole order with it.
    """

    seed: int
    epoch: int | None
    """None: not an epoch's, so the dataset is told of none."""
    indices: bytes
    """int64"""


def tensor_bytes(tensor: Tensor) -> bytes:
    """The bytes of a CPU tensor's values; numpy may not be there."""
    tensor = tensor.contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def tell_epoch(data: Any, epoch: int) -> None:
    """Call `set_epoch` of a dataset that has it, or of those that PyTorch's own wrappers hold."""
    if hasattr(data, "set_epoch"):
        data.set_epoch(epoch)
    elif isinstance(data, Subset):
        tell_epoch(data.dataset, epoch)
    elif isinstance(data, ConcatDataset | ChainDataset | StackDataset):
        parts = data.datasets
        for part in parts.values() if isinstance(parts, dict) else parts:
            tell_epoch(part, epoch)


class Reader(Dataset):
    """Reads whole batches of a map-style dataset: by its `get_batch`, by indexing a
    TensorDataset's tensors at once, or one example after the other and `collate`."""

    def __init__(self, data: Any, collate: Callable, default_collate: bool) -> None:
        self.data, self._collate = data, collate
        self._tensors = default_collate and type(data) is TensorDataset
        self._batches = hasattr(data, "get_batch")
        self._epoch: int | None = None

    def __len__(self) -> int:
        return len(self.data)

    @property
    def only_indexes_tensors(self) -> bool:
        """Whether reading is indexing tensors, too little work for a process of its own."""
        return self._tensors and not self._batches

    def set_epoch(self, epoch: int) -> None:
        """Tell the dataset of it, once. What it may draw then is the same in all processes."""
        if epoch != self._epoch:
            self._epoch = epoch
            with Draws(mix(0xE70C, epoch)):
                tell_epoch(self.data, epoch)

    def read(self, indices: Tensor) -> Any:
        """The batch of the examples with these numbers: int64, shape (n,)."""
        if self._batches:
            return self.data.get_batch(indices)
        if self._tensors:  # what default_collate makes of the examples, in one go
            return [t[indices] for t in self.data.tensors]
        listed = indices.tolist()
        many = getattr(self.data, "__getitems__", None)
        return self._collate(many(listed) if many else [self.data[i] for i in listed])

    def read_here(self, seed: int, indices: Tensor) -> Any:
        """`read` in the rank itself: the same random numbers as in a loader worker, and the
        rank's own generators are left alone."""
        if self.only_indexes_tensors:
            return self.read(indices)
        with Draws(seed):
            return self.read(indices)

    def __getitems__(self, request: Request) -> Any:
        """In a loader worker: DataLoader hands on what the sampler gave."""
        if request.epoch is not None:  # this process has a copy of the dataset
            self.set_epoch(request.epoch)
        seed_host(request.seed)
        return self.read(torch.frombuffer(bytearray(request.indices), dtype=torch.int64))


class Requests:
    """What DataLoader takes for a batch sampler: begins anew with each epoch."""

    def __init__(self, start: Callable[[], Iterable[Request]]) -> None:
        """`start` gives an epoch's requests."""
        self._start = start

    def __iter__(self) -> Iterator[Request]:
        return iter(self._start())


def map_loader(reader: Reader, requests: Callable[[], Iterable[Request]], *, workers: int,
               seed: int, device: torch.device) -> DataLoader:
    """Loader workers that stay over epochs and read what `requests` gives at the start of each."""
    # To DataLoader a request is opaque: `Reader.__getitems__` is handed what the sampler gave.
    batches: Any = Requests(requests)
    return DataLoader(
        reader, batch_sampler=batches, num_workers=workers, collate_fn=same,
        pin_memory=device.type == "cuda", persistent_workers=True, worker_init_fn=worker_init,
        multiprocessing_context="fork",
        generator=torch.Generator().manual_seed(seed))  # leaves the global one alone


class MapData:
    """Training batches of a map-style dataset, for one rank."""

    def __init__(self, data: Any, sampler: EpochSampler, *, seed: int, first: int, count: int,
                 workers: int, device: torch.device, collate: Callable, default_collate: bool
                 ) -> None:
        """For the replicas `first` to `first + count - 1`. `workers`: loader workers; `device`:
        where batches go. Raises UserError where the data is smaller than one global batch."""
        if sampler.examples < sampler.global_size:
            raise UserError(f"batch.size: a global batch takes {sampler.global_size} examples, but "
                            f"the training data has only {sampler.examples}")
        self._sampler = RankSampler(sampler, seed, first, count)
        self._reader = Reader(data, collate, default_collate)
        self._device = device
        self._loader = map_loader(
            self._reader, self._sampler.requests, workers=workers, seed=mix(seed, first),
            device=device) if workers else None

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Batches on the device, one a backward pass, from step `start` on."""
        self._sampler.set_epoch(epoch, start)
        self._reader.set_epoch(epoch)
        if self._loader is not None:
            for batch in self._loader:
                yield move(batch, self._device)
            return
        for seed, indices in self._sampler:
            yield move(pin(self._reader.read_here(seed, indices), self._device), self._device)


def move(batch: Any, device: torch.device) -> Any:
    """Tensors inside tuples, lists, dicts and anything with `.to`, on `device`; from pinned
    memory without waiting."""
    if device.type == "cpu":
        return batch
    if hasattr(batch, "to"):
        return batch.to(device, non_blocking=True)
    return _inside(batch, lambda part: move(part, device))


def pin(batch: Any, device: torch.device) -> Any:
    """Page-locked copies, for a GPU: copying from ordinary memory waits for the GPU."""
    if device.type != "cuda":
        return batch
    if hasattr(batch, "pin_memory"):
        return batch.pin_memory()
    return _inside(batch, lambda part: pin(part, device))


def _inside(batch: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(batch, dict):
        return {k: change(v) for k, v in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(change(v) for v in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(change(v) for v in batch)
    return batch


def same(batch: Any) -> Any:
    """DataLoader's `collate_fn` for batches that are ready."""
    return batch


def worker_init(worker: int) -> None:
    """DataLoader's `worker_init_fn`."""
    in_loader_worker()
