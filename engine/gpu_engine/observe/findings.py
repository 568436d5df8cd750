"""Finds out what a script does that trains less than it seems to: ranks that never exchange
anything, devices that are not used, data that is not divided among the ranks.

A script may be right in a way that is not known here: it reduces its gradients by hand, divides
its data itself, lets each rank try another seed. So each finding needs evidence, and without it
nothing is said. None of them needs anything from a step but the first few: modules are seen as they
are put into others, the first batches as they are loaded; the rest is
looked at by the thread that writes the record, until the first steps are done.

What is told and under which codes: `events.notices`.
"""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import socket
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..common.files import open_inside
from ..events import notices, schema
from ..worker.rank.standing import exchanged

STEPS = 3
"""The first steps, after which there is something to tell."""
EPOCHS = 3
"""In two, `set_epoch` may have come too late for the second, which is hard to see from here."""
ALONE = 1000
"""Steps without an exchange of parameters after which ranks with a process group train apart, if
their training is not over before: local SGD averages every few hundred."""
FOLDER = "observed"
"""The folder in the run folder in which ranks note what they load."""
_OTHER_WAYS = ("horovod", "mpi4py", "byteps", "bagua", "deepspeed", "jax", "ray", "hivemind",
               "torchft", "megatron", "colossalai")
"""Libraries through which ranks may exchange what is not seen here."""


class Findings:
    """What is found in one process. Its methods never raise."""

    def __init__(self, run: Path, rank: int, world: int, devices: Sequence[str]) -> None:
        """`rank`, `world`: as the environment says. `devices`: the labels of those that the process
        was given."""
        self._run, self._rank, self._world, self._devices = run, rank, world, devices
        self.size: Callable[[], int] = lambda: 0
        """How many numbers all parameters have that are trained; 0: not known, or they are no
        plain tensors, as where they are divided among ranks."""
        self._told: set[str] = set()
        self._new: list[schema.Warning] = []
        self._wrapper: weakref.ref[Any] | None = None
        """The first module that took another one in under the name `module`, as
        DistributedDataParallel and its like do."""
        self._had_group = False
        """Whether there was a process group when training began."""
        self._exchanged: tuple[int, int] | None = None
        """(step, operations of the process group by then) as they were seen first."""
        self._numbers = 0
        """How many numbers were exchanged since then, where they are fewer than a model has."""
        self._apart: bool | None = None
        """Whether the ranks train apart from each other; None: not known yet."""
        self._one_device = world == 1 and len(devices) > 1
        self._loader: _Loader | None = None
        """The loader that is iterated over before the first steps."""

    def begins(self, size: Callable[[], int]) -> None:
        """Called when the process begins to train. `size`: see the field."""
        self.size = size
        with contextlib.suppress(Exception):
            self._had_group = torch.distributed.is_initialized()

    # --- what the script does --------------------------------------------------------------------

    def registered(self, module: Any, name: str, inner: Any) -> None:
        """Called when a module gets another one, under any name."""
        if self._wrapper is None and name in ("module", "_fsdp_wrapped_module"):
            self._wrapper = weakref.ref(module)

    def iterated(self, loader: Any, step: int) -> None:
        """Called when a DataLoader's iteration begins. `step`: steps so far."""
        with contextlib.suppress(Exception):
            before = self._loader
            if before is not None and before.ref() is loader:
                self._order(before, step)
            elif before is None or step == before.step:  # nothing was trained with that one
                self._loader = _Loader(loader, step)
            elif step - before.step < STEPS:
                before.judged = True  # which of the two it trains with can't be told

    def set_epoch(self, sampler: Any, *_: Any) -> None:
        """Called when a DistributedSampler is told the epoch."""
        if self._loader is not None and self._loader.sampled_by() is sampler:
            self._loader.told_epoch = True  # three trainings of one epoch each begin with the same

    def loaded(self, loader: int, batch: Any) -> None:
        """Called with each batch that a DataLoader gives, and the loader's id."""
        mine = self._loader
        if mine is not None and len(mine.read) < STEPS and not mine.judged and mine.id == loader:
            with contextlib.suppress(Exception):
                mine.read.append(list(contents(batch)))

    # --- what is looked at -----------------------------------------------------------------------

    def check(self, step: int, gpus: Callable[[], Sequence[int]], *, losses: bool, over: bool
              ) -> list[schema.Warning]:
        """Look once. Returns what is to be told now. `step`: steps so far. `gpus` gives those that
        have held memory of this process. `losses`: whether any loss is known. `over`: no more steps
        will come."""
        with contextlib.suppress(Exception):
            if step >= STEPS or (over and step):
                self._check(step, gpus, losses, over)
        new, self._new = self._new, []
        return new

    def _check(self, step: int, gpus: Callable[[], Sequence[int]], losses: bool, over: bool
               ) -> None:
        if self._one_device:
            self._one_device = False
            # Ranks that the script itself has started share the devices.
            several = self._had_group or multiprocessing.parent_process() is not None
            if not several and len(gpus()) == 1:
                self._warn(notices.one_device(len(self._devices)))
        if self._world < 2:
            return
        if self._apart is None:
            self._apart = self._train_apart(step, over)
            if self._apart:
                self._train_alone(step, losses)
        loader = self._loader
        if loader is not None and not loader.judged and step - loader.step >= STEPS:
            loader.judged = True
            self._undivided(loader)

    def _train_alone(self, step: int, losses: bool) -> None:
        """Tell that ranks train apart, if it is not this one alone that does. With a process group
        two that know their losses must: stages of a pipeline, which may exchange activations in a
        way that is not counted, do not, but for the last."""
        if not self._exchanged:
            if self._rank == 1:
                self._warn(notices.apart(self._world, step, group=False))
        elif losses and self._noted_by_another("trains apart"):
            self._warn(notices.apart(self._world, step - self._exchanged[0], group=True,
                                     wrapped=self._wrapper is not None, numbers=self._numbers))

    def _train_apart(self, step: int, over: bool) -> bool | None:
        """Whether neither gradients nor parameters have ever left this rank; None: not known
        yet."""
        distributed = torch.distributed
        if any(name in sys.modules for name in _OTHER_WAYS) or not distributed.is_available():
            return False
        if not distributed.is_initialized():
            return not self._had_group and self._wrapper is None  # else the group is gone by now
        group: Any = distributed.group.WORLD
        # DistributedDataParallel exchanges nothing if only its `module` is called.
        if (self._wrapper is not None and self.ddp() is None) or group is None \
                or distributed.get_pg_count() != 1 or not (size := self.size()):
            return False
        # How many operations it has begun tells ranks that made a group and then train apart, which
        # nothing public does. Where it is gone, this is an error, and nothing is told.
        count = group._get_sequence_number_for_group()
        if self._exchanged is None:
            self._exchanged = (step, count)
            return None
        began, before = self._exchanged
        if step - began < (STEPS if over else ALONE):
            return None
        if count == before:
            return True
        # A metric is exchanged, too. What is smaller than the model can't be its average.
        sizes = exchanged(before)
        self._numbers = sum(sizes)
        return len(sizes) == count - before and self._numbers < size

    # --- data ------------------------------------------------------------------------------------

    def _undivided(self, loader: _Loader) -> None:
        """Tell if all ranks train on the same batches, though they average their gradients."""
        ddp = self.ddp()
        if not loader.takes_known or len(loader.read) < STEPS or not all(loader.read) \
                or ddp is None or ddp.process_group.size() != self._world:
            return  # over fewer ranks, others may well have the same batches
        if self._noted_by_another(f"loads {loader.read} {loader.part}"):
            rank, replicas = loader.part[:2]
            self._warn(notices.undivided(self._world, loader.examples, loader.sampler)
                       if replicas == 1 else notices.same_part(self._world, rank, replicas))

    def ddp(self) -> Any:
        """The script's DistributedDataParallel; None if there is none, or another took it in."""
        found = self._wrapper() if self._wrapper is not None else None
        return found if isinstance(found, torch.nn.parallel.DistributedDataParallel) else None

    def _order(self, loader: _Loader, step: int) -> None:
        """Note another iteration over a loader that trains. Tell if the third one has the order of
        the first."""
        if step <= loader.last:
            return
        loader.last = step
        loader.epochs.append(loader.epoch())
        if len(loader.epochs) == EPOCHS and loader.epochs[0] is not None \
                and len(set(loader.epochs)) == 1 and not loader.told_epoch:
            self._warn(notices.same_order(EPOCHS, loader.examples))

    def _noted_by_another(self, what: str) -> bool:
        """Note that this rank does something. Returns whether another rank of this machine has
        noted the same in this attempt."""
        env = os.environ
        text = "\n".join((what, socket.gethostname(), env.get("GPU_PANEL_ATTEMPT", ""),
                          env.get("TORCHELASTIC_RESTART_COUNT", "")))
        note = hashlib.sha256(text.encode(errors="replace")).hexdigest()
        (self._run / FOLDER).mkdir(mode=0o700, exist_ok=True)
        os.close(open_inside(self._run, f"{FOLDER}/{note}-{self._rank}", os.O_WRONLY | os.O_CREAT))
        return len(list((self._run / FOLDER).glob(f"{note}-*"))) > 1

    def _warn(self, warning: schema.Warning) -> None:
        if warning.code is not None and warning.code not in self._told:
            self._told.add(warning.code)
            self._new.append(warning)


class _Loader:
    """What is known of the loader with which the script trains."""

    def __init__(self, loader: Any, step: int) -> None:
        """Its iteration begins after `step` steps."""
        data = torch.utils.data
        self.ref, self.id = weakref.ref(loader), id(loader)
        self.step = self.last = step
        """Steps before its first and before its last iteration."""
        self.judged = False
        self.examples = 0
        self.takes_known = False
        """Whether its sampler says which part it takes of what the data set says to have. Only what
        is read tells whether that is the same on all ranks: a data set may divide itself."""
        self.read: list[list[object]] = []
        """Contents of its first batches."""
        self.sampler = type(loader.sampler).__name__
        self.part: tuple[int, ...] = (0, 1)
        """Which part of how many the loader takes, and what else decides which examples it has."""
        self.sampled_by: weakref.ref[Any] = weakref.ref(loader.sampler)
        self.told_epoch = False
        """Whether its sampler was told an epoch since its first iteration."""
        self.epochs = [self.epoch()]
        """For each iteration the epoch of a DistributedSampler that shuffles; else None."""
        if isinstance(loader.dataset, data.IterableDataset):
            return
        self.examples = len(loader.dataset)
        own = loader.sampler
        if type(own) is data.DistributedSampler and own.dataset is loader.dataset:
            self.part = (own.rank, own.num_replicas, own.shuffle, own.seed, own.drop_last)
        elif type(own) not in (data.SequentialSampler, data.RandomSampler):
            return
        self.takes_known = type(loader.batch_sampler) in (type(None), data.BatchSampler)

    def epoch(self) -> int | None:
        """The epoch by which its examples are shuffled now."""
        sampler = self.sampled_by()
        if type(sampler) is torch.utils.data.DistributedSampler and sampler.shuffle:
            return sampler.epoch
        return None

# ------------------------------------------------------------------------------------------------
# Tells whether the loaders of a script's ranks give the same batches.


_DEEP, _WIDE = 4, 40
"""Collections within a batch that are looked into, and how many of the elements of each."""
_NUMBERS = 500
"""About how many numbers of each tensor or array, from its beginning to its end."""


def contents(batch: Any, deep: int = _DEEP) -> Iterator[object]:
    """Some of the numbers and texts in a batch. Nothing of what can't be read, as on a GPU, which
    would have to be waited for."""
    numpy = sys.modules.get("numpy")
    if isinstance(batch, (str, bytes, int, float)):
        yield batch
    elif (type(batch) is torch.Tensor and batch.is_cpu and batch.layout == torch.strided) or (
            numpy is not None and type(batch) is numpy.ndarray):
        flat = (batch.detach() if isinstance(batch, torch.Tensor) else batch).reshape(-1)
        numbers = flat[::len(flat) // _NUMBERS + 1].tolist()
        yield tuple(batch.shape), numbers
    elif isinstance(batch, (list, tuple, Mapping)) and deep:
        for one in list(batch.values() if isinstance(batch, Mapping) else batch)[:_WIDE]:
            yield from contents(one, deep - 1)
