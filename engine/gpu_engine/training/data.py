"""Which examples a step uses, and how they are read.

The order is the same in every mode. With perm = permutation(seed, epoch) of the examples and G the
global batch, step s of an epoch uses perm[s·G : (s+1)·G]. That block is cut into slices of
`per_gpu` examples; with R replicas, replica r in backward pass a takes slice number a·R + r. A
last block of fewer than G examples is left out in every mode; as each epoch has another order,
each leaves out other examples.
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
from gpu_engine.training.rng import OwnRandomness, mix, seed_host
from gpu_engine.worker.rank import process


@dataclass(frozen=True)
class EpochSampler:
    """Which examples of an epoch each replica reads in each backward pass, given as positions in
    the epoch's order."""

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
        """Optimizer steps in an epoch."""
        return self.examples // self.global_size

    @property
    def dropped(self) -> int:
        """Examples that an epoch leaves out."""
        return self.examples % self.global_size

    def part(self, step: int, micro: int, first: int, count: int) -> slice:
        """The positions, in the epoch's order, of the examples that the `count` replicas from
        `first` on read in backward pass `micro` of `step`."""
        start = step * self.global_size + (micro * self.replicas + first) * self.per_gpu
        return slice(start, start + count * self.per_gpu)


def permutation(seed: int, epoch: int, examples: int) -> Tensor:
    """The epoch's order, the same on every rank: shape (examples,). It is int32 where that is
    enough, to save memory, and int64 otherwise; randperm draws the same numbers for both."""
    generator = torch.Generator().manual_seed(mix(seed, epoch))
    dtype = torch.int32 if examples < 2 ** 31 else torch.int64
    return torch.randperm(examples, generator=generator, dtype=dtype)


class RankSampler:
    """A rank's part of an `EpochSampler`: the indices for each backward pass of an epoch.

    Each pass has a seed of its own. So random augmentation in loader workers depends only on the
    position in the epoch, not on the number of workers or on where a run was resumed.
    """

    def __init__(self, sampler: EpochSampler, seed: int, first: int, count: int) -> None:
        """The part of the replicas `first` to `first + count - 1`."""
        self._whole, self._seed, self._first, self._count = sampler, seed, first, count
        self._epoch = self._start = 0

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Set the epoch of the next iteration, and the step at which it starts."""
        self._epoch, self._start = epoch, start

    def __len__(self) -> int:
        return (self._whole.steps - self._start) * self._whole.accumulate

    def __iter__(self) -> Iterator[tuple[int, Tensor]]:
        """(seed, indices) for each backward pass. The indices are an int64 tensor of shape (n,)
        with memory of its own."""
        epoch = self._epoch
        order = permutation(self._seed, epoch, self._whole.examples)
        for step in range(self._start, self._whole.steps):
            for micro in range(self._whole.accumulate):
                part = self._whole.part(step, micro, self._first, self._count)
                yield mix(self._seed, epoch, part.start), order[part].to(torch.int64, copy=True)

    def requests(self) -> Iterator[Request]:
        """The same as requests to loader workers."""
        for seed, indices in self:
            yield Request(seed, self._epoch, tensor_bytes(indices))


class Request(NamedTuple):
    """Asks a loader worker to read one batch.

    The indices are plain bytes. As a tensor they would travel through a file in shared memory, and
    a slice of the epoch's order would take the whole order along.
    """

    seed: int
    epoch: int | None
    """None for a batch outside of any epoch, as in an evaluation: `set_epoch` is not called."""
    indices: bytes
    """int64 values."""


def tensor_bytes(tensor: Tensor) -> bytes:
    """The bytes of a CPU tensor's values, without numpy, which may not be installed."""
    tensor = tensor.contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def tell_epoch(data: Any, epoch: int) -> None:
    """Call the dataset's `set_epoch` if it has one, else those of the datasets inside PyTorch's
    wrappers (Subset, ConcatDataset, …)."""
    if hasattr(data, "set_epoch"):
        data.set_epoch(epoch)
    elif isinstance(data, Subset):
        tell_epoch(data.dataset, epoch)
    elif isinstance(data, (ConcatDataset, ChainDataset, StackDataset)):
        parts = data.datasets
        for part in parts.values() if isinstance(parts, dict) else parts:
            tell_epoch(part, epoch)


class Reader(Dataset):
    """Reads whole batches of a map-style dataset: with its `get_batch`, by indexing the tensors of
    a TensorDataset, or example by example with `collate`."""

    def __init__(self, data: Any, collate: Callable, default_collate: bool) -> None:
        self.data, self._collate = data, collate
        self._tensors = default_collate and type(data) is TensorDataset
        self._batches = hasattr(data, "get_batch")
        self._epoch: int | None = None

    def __len__(self) -> int:
        return len(self.data)

    @property
    def only_indexes_tensors(self) -> bool:
        """Whether reading only indexes tensors, which is too little work for loader workers."""
        return self._tensors and not self._batches

    def set_epoch(self, epoch: int) -> None:
        """Call the dataset's `set_epoch`, once for each epoch. Random numbers that it draws then
        are the same in all processes."""
        if epoch != self._epoch:
            self._epoch = epoch
            with OwnRandomness(mix(0xE70C, epoch)):
                tell_epoch(self.data, epoch)

    def read(self, indices: Tensor) -> Any:
        """The batch of the examples with these indices (int64, shape (n,))."""
        if self._batches:
            return self.data.get_batch(indices)
        if self._tensors:  # the same as default_collate of the single examples, but faster
            return [t[indices].contiguous() for t in self.data.tensors]
        listed = indices.tolist()
        many = getattr(self.data, "__getitems__", None)
        return self._collate(many(listed) if many else [self.data[i] for i in listed])

    def read_here(self, seed: int, indices: Tensor) -> Any:
        """`read` in the rank itself. It draws the same random numbers as in a loader worker, and
        leaves the rank's own generators alone."""
        if self.only_indexes_tensors:
            return self.read(indices)
        with OwnRandomness(seed):
            return self.read(indices)

    def __getitems__(self, request: Request) -> Any:
        """The batch for a request, in a loader worker. DataLoader passes the batch sampler's item
        to this method unchanged."""
        if request.epoch is not None:  # each worker has its own copy of the dataset
            self.set_epoch(request.epoch)
        seed_host(request.seed)
        return self.read(torch.frombuffer(bytearray(request.indices), dtype=torch.int64))


class Requests:
    """The batch sampler of a DataLoader, which gives an epoch's requests at each iteration."""

    def __init__(self, start: Callable[[], Iterable[Request]]) -> None:
        """`start` returns the requests of the epoch that begins now."""
        self._start = start

    def __iter__(self) -> Iterator[Request]:
        return iter(self._start())


def worker_loader(data: Dataset, workers: int, seed: int, device: torch.device, **how: Any
                  ) -> DataLoader:
    """A loader of batches that come ready-made, whose workers live over all epochs."""
    process.prepare_sockets()
    return DataLoader(
        data, num_workers=workers, collate_fn=unchanged, pin_memory=device.type == "cuda",
        persistent_workers=True, worker_init_fn=process.in_loader_worker,
        multiprocessing_context="fork", **how,
        generator=torch.Generator().manual_seed(seed))  # so that it does not use the global one


def map_loader(reader: Reader, requests: Callable[[], Iterable[Request]], *, workers: int,
               seed: int, device: torch.device) -> DataLoader:
    """A loader of what `requests` returns at the start of each epoch."""
    # DataLoader does not look into a request: it passes it to `Reader.__getitems__`.
    return worker_loader(reader, workers, seed, device, batch_sampler=Requests(requests))


class MapData:
    """Training batches of a map-style dataset, for one rank."""

    def __init__(self, data: Any, sampler: EpochSampler, *, seed: int, first: int, count: int,
                 workers: int, device: torch.device, collate: Callable, default_collate: bool,
                 warn: Callable[[str], None] = lambda text: None,
                 copies: Callable[[], None] = lambda: None) -> None:
        """The batches of the replicas `first` to `first + count - 1`. `workers`: how many loader
        workers; `device`: where batches go; `warn` is told in words what is odd about the data;
        `copies` is called before a batch is copied to the device.
        Raises UserError if the data is smaller than one global batch."""
        if sampler.examples < sampler.global_size:
            raise UserError(f"batch.size: a global batch takes {sampler.global_size} examples, but "
                            f"the training data has only {sampler.examples}")
        self._sampler = RankSampler(sampler, seed, first, count)
        self._reader = Reader(data, collate, default_collate)
        self._device, self._warn = device, warn
        self._moved = mover(device, copies)
        self._examples = sampler.examples
        self._loader = map_loader(
            self._reader, self._sampler.requests, workers=workers, seed=mix(seed, first),
            device=device) if workers else None

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """The epoch's batches on the device, one for each backward pass, from step `start` on."""
        self._sampler.set_epoch(epoch, start)
        self._reader.set_epoch(epoch)
        many = len(self._reader)
        if many != self._examples:
            self._warn(f"the training data has {many:,} examples in epoch {epoch + 1}, and had "
                       f"{self._examples:,} when training began: the first {self._examples:,} are "
                       "used. Data whose length changes can be an IterableDataset")
        if self._loader is not None:
            return map(self._moved, self._loader)
        return (self._moved(pin(self._reader.read_here(seed, indices), self._device))
                for seed, indices in self._sampler)


def mover(device: torch.device, copies: Callable[[], None]) -> Callable[[Any], Any]:
    """`move` to this device, which calls `copies` before."""
    if device.type == "cpu":
        return unchanged

    def moved(batch: Any) -> Any:
        copies()
        return move(batch, device)

    return moved


def move(batch: Any, device: torch.device) -> Any:
    """The batch on `device`: tensors in tuples, lists and dicts, and anything else with `.to`.
    Copies from pinned memory do not wait."""
    if device.type == "cpu":
        return batch
    if hasattr(batch, "to"):
        return batch.to(device, non_blocking=True)
    return _inside(batch, lambda part: move(part, device))


def pin(batch: Any, device: torch.device) -> Any:
    """The batch in pinned memory if `device` is a GPU, as copies from ordinary memory would wait
    for the GPU."""
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
    if isinstance(batch, (list, tuple)):
        return type(batch)(change(v) for v in batch)
    return batch


def unchanged(batch: Any) -> Any:
    """The batch itself; a `collate_fn` for DataLoader if batches come ready-made."""
    return batch
