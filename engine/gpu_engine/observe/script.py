"""What one observed process is doing: its steps, their losses, its faults, forks and end.

Told by the wrappers and hooks of `observe`, in whatever thread the script calls them.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

from ..events import schema
from ..events.paths import events_path
from ..events.writer import append
from ..rank import recorder
from . import (
    by_hand as observe_by_hand,
)
from . import (
    end as observe_end,
)
from . import (
    loss as observe_loss,
)
from . import (
    optimizers as observe_optimizers,
)
from . import (
    rank as observe_rank,
)
from . import (
    record as observe_record,
)

RUNNING, _, OPTIMIZER = observe_rank.DOING
_PROCESSES = 64  # that train as the same rank at the same time
_FAULTS = 5  # of our own, after which we keep out of it


class _Here(threading.local):
    """What this thread is inside of."""

    steps = 0
    """Optimizer steps, one within another."""
    closed = False
    """Whether the closure that this step was given has been called once: its other calls are
    evaluations of the same step."""


class Observer:
    """All that is known in this process. Every method may be called from the script's calls."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.losses = observe_loss.Losses()
        self.rec: observe_rank.Watcher | None = None
        self.tried = False
        """Whether this process has tried to become a rank."""
        self.off = False
        self.ready = False
        """Whether a rank is recorded, has stepped and there is nothing particular about it, so
        that its loop can be seen in the few steps that `observe` takes."""
        self.stepped = 0
        """Steps of all optimizers, but for those seen while `ready`."""
        self._began = time.monotonic()
        self.here = _Here()
        self.optimizers = observe_optimizers.Optimizers()
        self._by_hand = observe_by_hand.ByHand()
        self._faults = 0
        self._norm = os.environ.get("GPU_PANEL_GRAD_NORM") == "1"
        self._error: BaseException | None = None
        self.names: set[str] = set()
        """Of values that the script has handed to a logger."""

    # --- becoming a rank -----------------------------------------------------------------------

    def early(self) -> None:
        """Show signs of life of a process that was started as a rank, before it trains."""
        who = observe_rank.identity()
        self.rec = observe_rank.Watcher(self._path(who["rank"]), self.run)
        self.rank = who["rank"]
        recorder.current = self.rec
        self.rec.phase = RUNNING
        self.rec.begin()

    def become(self, tensor: Any = None) -> None:
        """Claim the rank that this process is."""
        self.tried = True
        who = observe_rank.identity()
        early, self.rec = self.rec, None
        if early is not None and self.rank != who["rank"]:
            early.pause()
            early.let_go()
            early = None
        rec, process = self._claimed(who, early)
        if rec is None:
            recorder.current = None
            self.off = True
            self._warn(who["rank"], f"process {os.getpid()} also trains as rank {who['rank']}, as "
                                    f"{_PROCESSES} others do: it is not shown")
            return
        rec.lost = self._at_length
        cuda = tensor.device.index if isinstance(tensor, torch.Tensor) and tensor.is_cuda else None
        device = observe_rank.labels(who, cuda)
        rec.device = cuda if len(device) == 1 else None
        if rec is not early:
            fields = observe_rank.start_fields(who, device)
            if process > 1:
                rank = who["rank"] + (process - 1) * who["world_size"]
                fields |= {"rank": rank, "as_rank": who["rank"], "process": process}
            rec.write("start", **fields)
        self.rec, self.rank = rec, who["rank"]
        recorder.current = rec
        if not rec.started:
            rec.begin()
        observe_end.watch(self)

    def _claimed(self, who: dict[str, Any], early: observe_rank.Watcher | None,
                 ) -> tuple[observe_rank.Watcher | None, int]:
        """The record of the rank, or where other processes train as the same rank (hogwild), one
        beside theirs, and which of them this is, from 1. Its number is none of a rank's."""
        for process in range(1, _PROCESSES + 1):
            rank = who["rank"] + (process - 1) * who["world_size"]
            rec = early or observe_rank.Watcher(self._path(rank), self.run)
            if rec.claim():
                return rec, process
            rec.pause()
            rec.let_go()
            early = None
        return None, 0

    def _at_length(self) -> None:
        self.ready = False

    def _path(self, rank: int) -> Path:
        return events_path(self.run, rank)

    def _warn(self, rank: int, text: str) -> None:
        """In another process's file."""
        append(self._path(rank), schema.Warning(text))

    # --- what the script does ------------------------------------------------------------------

    # These three run at each step of a script: few calls, and no fault gets out of them.

    def backward(self, tensors: Any, gradients: Any) -> observe_rank.Watcher | None:
        """`backward()` is about to run. Returns the record, where there is one."""
        try:
            if not self.tried:
                self.become(tensors)
            rec = self.rec
            if rec is None:
                return None
            if not rec.started:
                rec.begin()  # after a fork
            if self.here.steps:
                if self.here.closed:
                    return rec
            elif not self.stepped:
                self._without_steps(tensors)
            self.losses.add(tensors, gradients)
        except Exception as err:  # noqa: BLE001 - never the script's problem
            self.fault(err)
        return self.rec

    def step_begins(self, optimizer: Any) -> None:
        try:
            if not self.tried:
                self.become()
            if self.rec is None:
                return
            here = self.here
            if here.steps and _wrappers_on_stack() <= 1:
                here.steps = 0  # the one before was left by an exception
            here.steps += 1
            if here.steps == 1:
                here.closed = False
                self.rec.phase = OPTIMIZER
        except Exception as err:  # noqa: BLE001
            self.fault(err)

    def step_ends(self, optimizer: Any) -> None:
        try:
            here = self.here
            rec = self.rec
            if rec is None or not here.steps:
                return
            here.steps -= 1
            if here.steps:
                return
            self.stepped += 1
            here.closed = False
            rec.phase = RUNNING
            loss = self.losses.take()
            if not self.losses.plain and _found_inf(optimizer):
                rec.skipped += 1
                rec.forget(loss)
                return
            which = self.optimizers.which(optimizer, loss)
            if which is None:
                return
            mine = which.one
            lr = optimizer.param_groups[0].get("lr")
            norm = self._norm_of(optimizer) if self._norm else None
            rec.took(observe_record.Step(
                mine.index, mine.name, loss, lr if type(lr) is float else _number(lr), norm,
                which.fresh))
            mine.lr = lr if type(lr) is float else None
            self.ready = rec.started and self.losses.plain and not (self.off or self._norm)
        except Exception as err:  # noqa: BLE001
            self.fault(err)

    def evaluated(self, parts: int, result: Any) -> None:
        """A step's closure has returned `result` from its first evaluation; before that there
        were `parts` losses."""
        if self.here.steps != 1 or self.rec is None:
            return
        self.here.closed = True
        if len(self.losses) == parts and isinstance(result, (torch.Tensor, float)):
            self.losses.add(torch.as_tensor(result), None)  # its gradients come another way

    def skipped(self) -> None:
        """A GradScaler has left a step out."""
        if self.rec is not None:
            self.rec.skipped += 1
            self.rec.forget(self.losses.take())

    def _without_steps(self, tensors: Any) -> None:
        """A call of backward() where no optimizer has ever stepped."""
        hand = self._by_hand
        if hand.adds_up:
            if hand.ended(tensors):
                self._tell_by_hand([self.losses.take()])
        elif hand.found:
            self._tell_by_hand([self.losses.take()])
        elif hand.call(tensors, len(self.losses)):
            calls = hand.marks
            self._tell_by_hand(self.losses.take_each(calls))
            step = "what lies between two changes" if hand.adds_up else "each call of backward()"
            self.rec.write("warning", message="no step of a torch optimizer was seen, while the "
                           f"parameters change: {step} is shown as a step")

    def _tell_by_hand(self, losses: list[Any]) -> None:
        if self._by_hand.one is None:
            self._by_hand.one = self.optimizers.by_hand()
        one = self._by_hand.one
        for loss in losses:
            self.rec.took(observe_record.Step(one.index, one.name, loss, None))

    def _norm_of(self, optimizer: Any) -> Any:
        grads = [p.grad.detach() for g in optimizer.param_groups for p in g["params"]
                 if p.grad is not None]
        if not grads:
            return None
        with torch.no_grad():
            norms = torch._foreach_norm(grads)
            return self.losses.read(torch.linalg.vector_norm(
                torch.stack([n.float().to(norms[0].device, non_blocking=True) for n in norms])))

    # --- faults, forks, the end ----------------------------------------------------------------

    def fault(self, err: BaseException) -> None:
        """One of our own: noted, and after a few of them we keep out of it. Never raises."""
        with contextlib.suppress(Exception):
            self._faults += 1
            self.off = self._faults >= _FAULTS
            self.ready = False
            text = f"observing: {type(err).__name__}: {err}"
            if self.off:
                text += "; no more is observed of this process"
            if self.rec is not None:
                self.rec.write("warning", message=text)
            else:
                observe_rank.note(text, self.run)

    def failed(self, err: BaseException) -> None:
        if self.rec is not None and err is not None and err is not self._error:
            self._error = err
            self.rec.write("error", **observe_rank.error_fields(err), phase=self.rec.phase,
                           step=self.rec.settled_step())

    def before_fork(self) -> None:
        self.ready = False
        if self.rec is not None:
            self.rec.pause()

    def after_fork(self) -> None:
        """In the parent. Python from 3.12 on warns of a fork beside threads, and counts them
        after this: then the thread waits for the next backward(), unless there are others."""
        if self.rec is not None and (self.rec.started or
                sys.version_info < (3, 12) or len(os.listdir("/proc/self/task")) > 1):  # noqa: PTH208
            self.rec.begin()

    def in_child(self) -> None:
        """A fork of a rank is no rank, until it trains itself."""
        self.ready = False
        rec, self.rec = self.rec, None
        recorder.current = None
        self.tried = self.off = False
        self.losses = observe_loss.Losses()
        self.optimizers = observe_optimizers.Optimizers()
        self._by_hand = observe_by_hand.ByHand()
        self.stepped = 0
        self.here = _Here()
        if rec is not None:
            rec.let_go()

    def finish(self, *, failed: bool = False) -> None:
        """The interpreter ends. How, only the exit status will tell, unless it `failed`."""
        self.ready = False
        rec = self.rec
        if rec is None:
            return
        self.failed(getattr(sys, "last_exc", None) or getattr(sys, "last_value", None))
        if not self.stepped and len(self.losses):
            if self._by_hand.found:
                self._tell_by_hand([self.losses.take()])
            elif self._by_hand.likely:  # it ended before that was sure
                self._tell_by_hand(self.losses.take_each(self._by_hand.marks))
        self.rec = None
        rec.close()
        if self.tried:
            rec.phase = "done"
            rec.write("end", outcome="failed" if failed or self._error is not None else None,
                      steps=rec.step_now, seconds=round(time.monotonic() - self._began, 3))
        rec.let_go()


def _number(lr: Any) -> float | None:
    if isinstance(lr, torch.Tensor):
        return float(lr.item()) if lr.is_cpu else None  # reading it would wait for the GPU
    return None if lr is None else float(lr)


def _found_inf(optimizer: Any) -> bool:
    """Whether a fused optimizer was told by a GradScaler to leave the step out."""
    found = getattr(optimizer, "found_inf", None)
    return isinstance(found, torch.Tensor) and found.is_cpu and bool(found.item())


def _wrappers_on_stack() -> int:
    """How many calls of an optimizer's hooked `step` this thread is really inside of."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename in observe_end.OURS:
        frame = frame.f_back
    code, count = frame.f_code, 0
    while frame is not None:
        count += frame.f_code is code
        frame = frame.f_back
    return count
