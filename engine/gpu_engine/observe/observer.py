"""Follows what one observed process does: its steps and their losses, its forks and its end.

The wrappers and hooks of `install` call it, in whichever thread the script calls them.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ..events import notices, schema
from ..events.paths import events_path
from ..events.writer import append
from ..worker.rank import record_writer
from ..worker.rank.memory import error_event
from ..worker.rank.step_parts import READY, LastGradient
from . import identity, wrap
from .findings import Findings
from .gradients import Gradients
from .identity import Identity
from .loss import Losses, PendingLoss
from .optimizers import Optimizer, Optimizers, Unchanged
from .parts import BACKWARD, OPTIMIZER, STEP, STEPPED, ScriptParts
from .recorder import ScriptRecorder
from .steps import Step, made

RUNNING = "running"
"""The phase of a script's rank but for BACKWARD and OPTIMIZER."""
_PROCESSES = 64  # the most processes that may train as the same rank at the same time
_BY_HAND = 100
"""So many calls of backward() without a step of any optimizer are steps themselves."""
_FULL = 1 << 20
"""Bytes below which a disk is full."""
_FAULTS = 5  # errors of our own after which nothing more is observed
_pass_now, _thread = torch._C._current_graph_task_id, threading.get_ident


class _Doing:
    """What a thread is doing."""

    steps = 0
    """How many optimizer steps it is inside of, one within another."""
    closed = False
    """Whether the closure of the current step has been evaluated. Further evaluations give no
    losses."""


class _DoingElsewhere(_Doing, threading.local):
    """The same of each thread but the one that trains: looking there takes longer."""


class Observer:
    """The state of one observed process. The script's own calls lead to its methods."""

    def __init__(self, run: Path, became_rank: Callable[[Observer], None]) -> None:
        """`run`: the run folder. `became_rank` is called when this process has claimed a rank."""
        self.run = run
        self._became_rank = became_rank
        self.rec: ScriptRecorder | None = None
        self._began = time.monotonic()
        self._rank = 0
        """The rank of `rec`."""
        self._faults = 0
        self._norm = os.environ.get("GPU_PANEL_GRAD_NORM") == "1"
        self._error: BaseException | None = None
        self._unsaved: tuple[BaseException | None, str] = (None, "")
        """(the error of a `torch.save`, which file could not be written as its disk is full)."""
        self._empty = False
        """Whether a loader without a batch was told of."""
        self._lowered = False
        """Whether a batch that was lowered was told of."""
        self._small: dict[int, schema.Warning] = {}
        """By a loader's id that it has fewer examples than a batch would."""
        self._streams: dict[int, int] = {}
        """By the id of a loader whose length is not known the batch size; of one that stacks its
        examples."""
        self.loader = 0
        """The id of the loader that gave the last batch."""
        self.names: set[str] = set()
        """The names of values that the script has passed to a logger and that are recorded."""
        self.names_left_out = False
        self._begin()

    def _begin(self) -> None:
        """Begin in a process that is no rank yet."""
        self.losses = Losses()
        self.tried = False
        """Whether this process has tried to become a rank."""
        self.off = False
        """Whether observing has ended for this process."""
        self.stepped = 0
        """Steps of all optimizers."""
        self._doing, self.elsewhere = _Doing(), _DoingElsewhere()
        self.optimizers = Optimizers()
        self.gradients = Gradients(self.optimizers.alive)
        self._unchanged = Unchanged()
        self._by_hand: Optimizer | None = None
        """Under whose number calls of backward() are recorded as steps."""
        self.last_gradient: LastGradient | None = None
        """None: no step has been seen."""
        self.findings: Findings | None = None
        """None: this process is not looked at in that way."""

    def mark(self, kind: str) -> None:
        """Note that something of this kind begins in the thread that trains, see `parts`."""
        if self.rec is not None:
            self.rec.parts.here(kind)

    # --- becoming a rank -----------------------------------------------------------------------

    def early(self) -> None:
        """Start heartbeats for a process that was started as a rank, before it trains."""
        self._rank = identity.identify().rank
        rec = self.rec = self._recorder(self._rank)
        record_writer.current = rec
        rec.phase = RUNNING
        rec.begin()

    def become(self, tensor: Any = None) -> None:
        """Become the rank that this process says it is, and claim its record. `tensor`: the tensor
        on which backward() is called, if known."""
        self.tried = True
        who = identity.identify()
        # What was recorded before the first step is kept, if it was for the same rank.
        early, self.rec = self.rec, None
        if early is not None and self._rank != who.rank:
            early.give_up()
            early = None
        rec, process = self._claimed(who, early)
        if rec is None:
            record_writer.current = None
            self.off = True
            append(events_path(self.run, who.rank), schema.Warning(
                f"process {os.getpid()} is not shown: {_PROCESSES} other processes already train "
                f"as rank {who.rank}"))
            return
        cuda = tensor.device.index if isinstance(tensor, torch.Tensor) and tensor.is_cuda else None
        devices = identity.device_labels(who, cuda)
        rec.device = cuda if len(devices) == 1 else None
        rec.parts.thread = threading.get_ident()
        if rec is not early:
            rec.write(identity.start_event(who, devices, process))
        self.rec, self._rank = rec, who.rank
        rec.findings = self.findings
        if self.findings is not None:
            self.findings.begins(self.optimizers.size)
        record_writer.current = rec
        rec.begin()
        self._became_rank(self)

    def _claimed(self, who: Identity, early: ScriptRecorder | None,
                 ) -> tuple[ScriptRecorder | None, int]:
        """(recorder, process number): the rank's own recorder, or that of a further record if other
        processes train as the same rank (hogwild). (None, 0) if there are too many."""
        for process in range(1, _PROCESSES + 1):
            rec = early or self._recorder(identity.record_number(who, process))
            if rec.claim.acquire():
                return rec, process
            rec.give_up()
            early = None
        return None, 0

    def _recorder(self, rank: int) -> ScriptRecorder:
        return ScriptRecorder(events_path(self.run, rank), self.run, self.losses)

    # --- what the script does ------------------------------------------------------------------

    # Most of what this costs is code and data that the script's own work has put out of the
    # processor's caches: a call of ours takes 1 to 3 µs there, one of torch's up to 10.

    @wrap.hidden
    def backward(self, tensors: Any, gradients: Any
                 ) -> tuple[ScriptRecorder, str, ScriptParts | None] | None:
        """Called before `torch.autograd.backward`, with what that is given. Returns the recorder,
        the phase that follows, and where that is noted, if this thread's steps are timed. None if
        there is no recorder, or the call is inside of a backward pass."""
        if _pass_now() != -1:
            return None
        if not self.tried:
            self.become(tensors)
        rec = self.rec
        if rec is None:
            return None
        trains = _thread() == rec.parts.thread
        doing = self._doing if trains else self.elsewhere
        inside = doing.steps
        if not (inside and doing.closed):
            # Not at the end of a step, which is inside of a range that torch records itself.
            if rec.tracer.wanted:
                rec.tracer.stepped(self.steps_so_far())
            if not inside and not self.stepped:
                self._without_steps(rec)
            losses = self.losses
            self.gradients.passes += 1
            if losses.parts or not losses.unscaled:
                self.gradients.backward_begins(len(losses.parts))
            losses.add(tensors, gradients)
        rec.phase = BACKWARD
        marks = rec.parts
        marks.workers = marks.loading  # of the last batch, which this is for
        if trains:
            marks.mark(BACKWARD)
        return rec, OPTIMIZER if inside else RUNNING, marks if trains else None

    @wrap.hidden
    def step_begins(self) -> bool:
        """Called before an optimizer's `step()`. Returns whether it is inside of no other."""
        if not self.tried:
            self.become()
        rec = self.rec
        if rec is None:
            return False
        trains = _thread() == rec.parts.thread
        doing = self._doing if trains else self.elsewhere
        if doing.steps and wrap.calls_of_our_caller() <= 1:
            doing.steps = 0  # an exception has ended the previous step
        doing.steps += 1
        if doing.steps > 1:
            return False
        doing.closed = False
        rec.phase = OPTIMIZER
        if trains:
            rec.parts.mark(OPTIMIZER)
        return True

    @wrap.hidden
    def step_ends(self, optimizer: Any) -> None:
        """Called after `optimizer.step()`."""
        rec = self.rec
        if rec is None:
            return
        trains = _thread() == rec.parts.thread
        doing = self._doing if trains else self.elsewhere
        if not doing.steps:
            return
        # An optimizer that wraps another calls that one's step in its own: the outer is the step.
        doing.steps -= 1
        if doing.steps:
            return
        doing.closed = False
        rec.phase = RUNNING
        left_out, losses = 0, self.losses
        if self.gradients.left_out:
            left_out, warning = self.gradients.stepped(optimizer, self.stepped, len(losses.parts))
            if warning is not None:
                rec.write(warning)
        else:
            self.gradients.calls = len(losses.parts)
        self.stepped += 1
        if left_out:
            dropped, loss = losses.take_each([0, left_out])
            rec.drop(dropped)
        else:
            loss = losses.take()
        kind, one, begins = STEPPED, None, False
        if not losses.unscaled and _found_inf(optimizer):
            rec.skipped += 1
            rec.drop(loss)
        else:
            if not self._unchanged.settled \
                    and (still := self._unchanged.stepped(optimizer)) is not None:
                rec.write(still)
            one, begins = self.optimizers.stepped(optimizer, loss)
            if one is not None and not one.number:
                kind = STEP
        if trains:
            rec.parts.mark(kind)
        if one is None:
            return
        if self.last_gradient is None:
            ddp = None if self.findings is None else self.findings.ddp()
            if small := self._small.get(self.loader):
                rec.write(small)
            self.last_gradient = LastGradient(
                () if ddp is None else ddp.parameters(), lambda: rec.parts.mark(READY))
        lr = optimizer.param_groups[0].get("lr")
        rec.queue.append(made(Step, (
            one.number, one.name, loss, lr if type(lr) is float else _number(lr),
            self._norm_of(optimizer) if self._norm else None, begins)))

    def evaluates(self, *_: Any, **__: Any) -> int | None:
        """Called before a step's closure is evaluated. Returns how many losses there are; None
        where it was evaluated before."""
        return None if self._here().closed else len(self.losses.parts)

    def evaluated(self, before: int | None, result: Any, *_: Any, **__: Any) -> None:
        """Called after it, with what `evaluates` has returned."""
        here = self._here()
        if before is None or here.steps != 1 or self.rec is None:
            return
        here.closed = True
        if len(self.losses.parts) == before and isinstance(result, (torch.Tensor, float)):
            self.losses.add(torch.as_tensor(result), None)  # the closure called no backward()

    def _here(self) -> _Doing:
        """What this thread is doing."""
        return self._doing if self.trains() else self.elsewhere

    def trains(self) -> bool:
        """Whether this is the thread whose steps are timed."""
        return self.rec is not None and _thread() == self.rec.parts.thread

    def iterated(self, loader: Any) -> None:
        """Called when a DataLoader begins an epoch. Before the first step it is told if it has no
        batch at all, as the script would end well without a step."""
        data = torch.utils.data
        if isinstance(loader.dataset, data.IterableDataset) and loader.batch_size \
                and loader.collate_fn is data.default_collate:
            self._streams[id(loader)] = loader.batch_size
        self.gradients.iterated(loader, self.stepped, len(self.losses.parts))
        if self.stepped or self._empty or not type(loader.sampler).__module__.startswith("torch."):
            return
        examples, batch = len(loader.sampler), loader.batch_size
        if 0 < examples < batch and not loader.drop_last:
            self._small[id(loader)] = notices.small_data(examples, batch)
        self._empty = examples < (batch if loader.drop_last else 1)
        if self._empty:
            if not self.tried:
                self.become()
            if self.rec is not None:
                self.rec.write(notices.no_batch(examples, batch or 0))

    def loaded(self, loader: int, batch: Any) -> None:
        """Called with each batch that a DataLoader gives, and the loader's id."""
        self.loader = loader
        if self.stepped or (size := self._streams.pop(loader, None)) is None:
            return
        while isinstance(batch, (list, tuple, dict)):
            batch = next(iter(batch.values() if isinstance(batch, dict) else batch), None)
        if isinstance(batch, torch.Tensor) and len(batch) < size:
            self._small[loader] = notices.small_data(len(batch), size, first=True)

    def lowered(self) -> None:
        """Called when a library has caught that memory ran out, and tries a smaller batch."""
        if not self.tried:
            self.become()
        if self.rec is not None and not self._lowered:
            self._lowered = True
            self.rec.write(notices.lowered())

    def steps_so_far(self) -> int:
        """About how many steps this rank has made; 0 before the first."""
        return 0 if self.rec is None else self.rec.step_now + len(self.rec.queue)

    def skipped(self) -> None:
        """Called when a GradScaler has left a step out."""
        if self.rec is not None:
            self.rec.skipped += 1
            self.gradients.stepped()
            self.rec.drop(self.losses.take())

    def _without_steps(self, rec: ScriptRecorder) -> None:
        """Called at a call of backward() while no optimizer has ever stepped. So many of them are
        taken for steps that the script makes by hand, or inside torch.compile."""
        if self._by_hand is not None:
            self._record_by_hand(rec, [self.losses.take()])
        elif len(self.losses.parts) == _BY_HAND:
            self._by_hand = self.optimizers.by_hand()
            self._record_by_hand(rec, self.losses.take_each(list(range(_BY_HAND))))
            rec.write(schema.Warning("no step of a torch optimizer was seen: each call of "
                                     "backward() is shown as a step"))

    def _record_by_hand(self, rec: ScriptRecorder,
                        losses: Sequence[float | PendingLoss | None]) -> None:
        """Record steps that were made by hand, given their losses."""
        if (one := self._by_hand) is not None:
            for loss in losses:
                rec.queue.append(Step(one.number, one.name, loss, None))

    def _norm_of(self, optimizer: Any) -> Any:
        grads = [p.grad.detach() for g in optimizer.param_groups for p in g["params"]
                 if p.grad is not None]
        if not grads:
            return None
        with torch.no_grad():
            norms = torch._foreach_norm(grads)  # pyright: ignore[reportPrivateImportUsage]
            return self.losses.read(torch.linalg.vector_norm(
                torch.stack([n.float().to(norms[0].device, non_blocking=True) for n in norms])))

    # --- faults, forks, the end ----------------------------------------------------------------

    def fault(self, err: BaseException) -> None:
        """Report an error of our own. After a few of them, observing ends. Never raises."""
        with contextlib.suppress(Exception):
            self._faults += 1
            self.off = self._faults >= _FAULTS
            text = f"observing: {type(err).__name__}: {err}"
            if self.off:
                text += "; this process is no longer observed"
            if self.rec is not None:
                self.rec.write(schema.Warning(text))
            else:
                identity.note(text, self.run)

    def failed(self, err: BaseException | None) -> None:
        """Record the uncaught error that ends the script; None if there is none."""
        rec = self.rec
        if rec is not None and err is not None and err is not self._error:
            self._error = err
            rec.flush()  # steps in the queue count; while a write hangs, those known before do
            rec.write(error_event(err, rec.phase, rec.step_now, held_by=rec.held_by(err),
                                  more=self._unsaved[1] if err is self._unsaved[0] else ""))
            # After the error: asking torch takes a while, and torchrun ends us within 0.1 s.
            rec.write_failure(err)

    def unsaved(self, err: BaseException, file: Any) -> None:
        """Called when `torch.save` has failed to write to `file`: its error seldom says why."""
        path = os.path.abspath(getattr(file, "name", file))  # noqa: PTH100 - may be bytes
        info = os.statvfs(os.path.dirname(path))  # noqa: PTH120
        if info.f_bavail * info.f_frsize < _FULL:
            self._unsaved = err, f"; No space left on device: '{os.fsdecode(path)}'"

    def in_child(self) -> None:
        """Called in the child after a fork. The child is not a rank until it trains itself."""
        rec, self.rec = self.rec, None
        record_writer.current = None
        self._begin()
        if rec is not None:
            rec.give_up()

    def finish(self, *, failed: bool = False, status: int | None = None) -> None:
        """Called when the interpreter ends. Whether that is a success, only the exit status tells,
        and after Ctrl-C whether a stop was asked; `failed`: it is known to be a failure. `status`:
        what the script has given to os._exit, which leaves out the interpreter's end."""
        rec = self.rec
        if rec is None:
            return
        self.failed(getattr(sys, "last_exc", None) or getattr(sys, "last_value", None))
        if not self.stepped and self.losses.parts:
            self._record_by_hand(rec, [self.losses.take()])
        self.rec = None
        rec.close()
        if self.tried:
            rec.phase = "done"
            if (still := self._unchanged.over()) is not None:
                rec.write(still)
            rec.write_memory()
            failed |= not isinstance(self._error, (KeyboardInterrupt, type(None)))
            rec.write(schema.End("failed" if failed else None,
                                 rec.step_now, round(time.monotonic() - self._began, 3),
                                 exit=status))
        rec.give_up()
        # They hold the script's globals: files in them would not be closed, nor written to the end.
        self._error, self._unsaved = None, (None, "")


def _number(lr: Any) -> float | None:
    if isinstance(lr, torch.Tensor):
        return float(lr.item()) if lr.is_cpu else None  # on a GPU, reading it would wait
    return None if lr is None else float(lr)


def _found_inf(optimizer: Any) -> bool:
    """Whether a GradScaler has told a fused optimizer to leave the step out."""
    found = getattr(optimizer, "found_inf", None)
    return isinstance(found, torch.Tensor) and found.is_cpu and bool(found.item())
