"""Watches whether a dataset reads which rank or loader worker it is in."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch.utils.data._utils import worker as torch_worker

from gpu_engine.training.division import RANK, WORKER

_VARIABLES = {"RANK": "rank", "WORLD_SIZE": "ranks"}


class Watch:
    """Notices, inside `with watch.on():`, when code reads which rank or worker this process is.

    It watches `get_worker_info()` (its `id` and `num_workers`), `get_rank` and `get_world_size` of
    `torch.distributed`, however they were imported, and the environment's RANK and WORLD_SIZE.
    """

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called whenever `divides` grows, at that very moment."""
        self._questions: set[str] = set()
        self._changed = changed
        self._pairs = {name: (getattr(dist, name), self._watched(getattr(dist, name), question))
                       for name, question in (("get_rank", "rank"), ("get_world_size", "ranks"))}
        self._held: list[tuple[Any, str, Callable, Callable]] = []
        self._modules = 0
        # Threads that run already read these values for other reasons. Threads that start later
        # are taken for the dataset's.
        self._others = {*threading.enumerate()} - {threading.current_thread()}

    @property
    def divides(self) -> frozenset[str]:
        """RANK if both the rank and the world size have been read, WORKER likewise. Code that reads
        only one of the two does not divide: it seeds, logs, or downloads on rank 0."""
        return frozenset(what for what in (RANK, WORKER) if {what, what + "s"} <= self._questions)

    def note(self, question: str) -> None:
        """Note that the calling thread has read the rank, the number of ranks, the worker or the
        number of workers: "rank", "ranks", "worker" or "workers"."""
        if threading.current_thread() in self._others:
            return
        before = self.divides
        self._questions.add(question)
        if self.divides != before:
            self._changed()

    @contextmanager
    def on(self, info: Any = None, dataset: Any = None, seed: int = 0) -> Iterator[Watch]:
        """Watch inside this context. In a loader worker, `info` is its own `get_worker_info()`;
        the dataset then sees `dataset` and `seed` in place of those in `info`."""
        with self._environment(), self._functions():
            if info is None:
                yield self
                return
            torch_worker._worker_info = _WatchedInfo(self, info, dataset, seed)
            try:
                yield self
            finally:
                torch_worker._worker_info = info

    @contextmanager
    def _environment(self) -> Iterator[None]:
        kind: Any = type(os.environ)  # Any: type checkers don't allow replacing methods
        read, keys = kind.__getitem__, kind.__iter__
        listed: set[str] = set()  # dict(os.environ) reads every variable: that does not count

        def watched_read(environ: Any, key: str) -> str:
            value = read(environ, key)
            if key in listed:
                listed.discard(key)
            elif key in _VARIABLES:
                self.note(_VARIABLES[key])
            return value

        def watched_keys(environ: Any) -> Iterator[str]:
            listed.update(_VARIABLES)
            return keys(environ)

        kind.__getitem__, kind.__iter__ = watched_read, watched_keys
        try:
            yield
        finally:
            kind.__getitem__, kind.__iter__ = read, keys

    @contextmanager
    def _functions(self) -> Iterator[None]:
        """Replace the functions in every module that imported them by name, except in torch's own
        modules, which call them all the time for other reasons."""
        self._find_functions()
        for module, name, _, watched in self._held:
            setattr(module, name, watched)
        try:
            yield
        finally:
            self._find_functions()  # modules imported meanwhile hold the replaced functions
            for module, name, original, _ in self._held:
                setattr(module, name, original)

    def _find_functions(self) -> None:
        if len(sys.modules) == self._modules:
            return
        self._modules = len(sys.modules)
        self._held = []
        for name, (original, watched) in self._pairs.items():
            for key, module in [("", dist), *sys.modules.copy().items()]:
                if key.partition(".")[0] != "torch" and getattr(
                        module, "__dict__", {}).get(name) in (original, watched):
                    self._held.append((module, name, original, watched))

    def _watched(self, original: Callable[..., int], question: str) -> Callable[..., int]:
        def watched(*args: Any, **named: Any) -> int:
            value = original(*args, **named)
            self.note(question)
            return value
        return watched


class _WatchedInfo:
    """What `get_worker_info()` returns to a dataset that is being watched."""

    def __init__(self, watch: Watch, info: Any, dataset: Any, seed: int) -> None:
        self._watch, self._info = watch, info
        self.dataset, self.seed = dataset, seed

    @property
    def id(self) -> int:
        self._watch.note("worker")
        return self._info.id

    @property
    def num_workers(self) -> int:
        self._watch.note("workers")
        return self._info.num_workers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._info, name)
