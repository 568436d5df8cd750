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

from . import observe_end, observe_loss, observe_optimizers, observe_rank, recorder

RUNNING, _, OPTIMIZER = observe_rank.DOING
ALONE = 100  # calls of backward() without any step
_FAULTS = 5  # of our own, after which we keep out of it


class _Here(threading.local):
    """What this thread is inside of."""

    steps = 0
    """Optimizer steps, one within another."""
    closed = False
    """Whether a loss was already counted in this step."""


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
        self._alone = 0
        self._faults = 0
        self._norm = os.environ.get("GPU_PANEL_GRAD_NORM") == "1"
        self._error: BaseException | None = None

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
        rec = early or observe_rank.Watcher(self._path(who["rank"]), self.run)
        rec.lost = self._at_length
        if not rec.claim():
            rec.pause()
            rec.let_go()
            recorder.current = None
            self.off = True
            self._warn(who["rank"], f"process {os.getpid()} also trains as rank {who['rank']}, "
                                    "which another process holds: it is not shown")
            return
        cuda = tensor.device.index if isinstance(tensor, torch.Tensor) and tensor.is_cuda else None
        device = observe_rank.labels(who, cuda)
        rec.device = cuda if len(device) == 1 else None
        if early is None:
            rec.write("start", **observe_rank.start_fields(who, device))
        self.rec, self.rank = rec, who["rank"]
        recorder.current = rec
        if not rec.started:
            rec.begin()
        observe_end.watch(self)


    def _at_length(self) -> None:
        self.ready = False

    def _path(self, rank: int) -> Path:
        return self.run / "ranks" / f"{rank:05d}.jsonl"

    def _warn(self, rank: int, text: str) -> None:
        """A whole line in one write, as it is another process's file."""
        from .. import events

        fd = os.open(self._path(rank), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(fd, events.encode("warning", {"message": text}))
        finally:
            os.close(fd)

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
                self.here.closed = True
            elif not self.stepped:
                self._without_steps()
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
            mine = self.optimizers.which(optimizer, loss)
            if mine is None:
                return
            mine.steps += 1
            norm = None
            if mine.index == 0:
                rec.step_now = mine.steps
                if self._norm:
                    norm = self._norm_of(optimizer)
            lr = optimizer.param_groups[0].get("lr")
            rec.took(observe_rank.Step(mine.index, mine.name, mine.steps, loss,
                                       lr if type(lr) is float else _number(lr), norm))
            mine.lr = lr if type(lr) is float else None
            self.ready = rec.started and self.losses.plain and not (self.off or self._norm)
        except Exception as err:  # noqa: BLE001
            self.fault(err)

    def skipped(self) -> None:
        """A GradScaler has left a step out."""
        if self.rec is not None:
            self.rec.skipped += 1
            self.rec.forget(self.losses.take())

    def _without_steps(self) -> None:
        """Nothing but calls of backward() so far: after many, each is a step."""
        self._alone += 1
        if self._alone < ALONE:
            return
        if self._alone == ALONE:
            self.rec.forget(self.losses.take())
            self.rec.write("warning", message=f"{ALONE} calls of backward() and no step of a "
                           "torch optimizer was seen: each call is shown as a step")
            return
        self._step_alone(self._alone - 1)

    def _step_alone(self, step: int) -> None:
        self.rec.step_now = step
        self.rec.took(observe_rank.Step(0, "backward", step, self.losses.take(), None, None))

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
                           step=self.rec.step_now)

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
        self._alone = self.stepped = 0
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
        if self._alone >= ALONE and not self.stepped:
            self._step_alone(self._alone)
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
