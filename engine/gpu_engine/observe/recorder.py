"""The recorder of one process of a person's own script.

Many processes of a command are not ranks: DataLoader workers, launch agents, helpers. A process
becomes a rank, and claims the rank's record, when it first calls `backward()` or steps an
optimizer. A process that the supervisor itself started as a rank sends heartbeats before that, and
stops writing when another process claims the rank.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..events import schema
from ..events.writer import encode
from ..worker.rank.record_writer import RecordWriter
from . import notes
from .findings import Findings
from .lifeline import Lifeline
from .loss import Losses, PendingLoss
from .parts import ScriptParts
from .rank_lock import Claim
from .step_events import StepEvents, Values
from .trainings import Step
from .writer_thread import WriterThread

_PATIENCE = 5.0
"""Seconds for which a script waits at its end, or with an error, for a write that hangs."""


class ScriptRecorder:
    """A recorder that the script does not notice: its thread does not appear in `threading`, it
    stops during forks, and it prints nothing to the script's stderr."""

    def __init__(self, path: Path, run: Path, losses: Losses) -> None:
        """Append to `path` in the run folder `run`. `losses` reads logged tensors. Raises
        OSError."""
        self.phase = "init"
        """What the rank is doing now."""
        self.step_now = 0
        self.skipped = 0
        """Steps that a GradScaler left out."""
        self.device: int | None = None
        """The index of the GPU whose memory is recorded; None for all GPUs in use."""
        self.queue: deque[Any] = deque()
        """Steps and values to be recorded, in the form that `step_events` describes."""
        self.findings: Findings | None = None
        self.parts = ScriptParts()
        """What the time of the steps is spent on."""
        self._losses = losses
        self._writer = RecordWriter(path, self, lambda text: notes.note(text, run))
        self.tracer = self._writer.tracer
        self._claim = Claim(path)
        self._lifeline = Lifeline.of_supervisor()
        self._events = StepEvents()
        self._pid = os.getpid()
        self._thread: WriterThread | None = None
        self._given_up = False
        self._closing = False

    # --- the claim on the rank -----------------------------------------------------------------

    def claim(self) -> bool:
        """Claim the rank. Returns False if another process holds it."""
        return self._claim.acquire()

    def give_up(self) -> None:
        """Stop writing, and free the rank for other processes."""
        self._given_up = True
        self.queue.clear()
        self._claim.release()

    # --- the thread ----------------------------------------------------------------------------

    @property
    def started(self) -> bool:
        """Whether the thread runs, or hangs in a write."""
        return self._thread is not None

    def begin(self) -> None:
        """Make sure that the thread runs, even if it was told to end and hangs in a write."""
        thread = self._thread
        if thread is None or not thread.go_on():
            self._thread = WriterThread(self._tick, self._has_ended)

    def pause(self) -> None:
        """End the thread for now. If it hangs in a write, it is left as it is after a second."""
        thread = self._thread
        if thread is not None and thread.end():
            self._thread = None

    def close(self) -> None:
        """End the thread and write everything that is left. No more steps may follow."""
        self.pause()
        self._closing = True
        self._writer.flush(timeout=_PATIENCE)

    def _has_ended(self, thread: WriterThread) -> None:
        if self._thread is thread:
            self._thread = None

    def _tick(self) -> None:
        self._writer.guard(self._collect_and_write)

    def _collect_and_write(self) -> None:
        if os.getpid() != self._pid or self._given_up:
            return
        if self._claim.held_by_another():
            self._given_up = True
            return
        if self._lifeline is not None:
            self._lifeline.check()
        main = threading.main_thread()
        if self.parts.thread == main.ident and not main.is_alive():
            self.phase = "done"  # what functions of atexit or other threads do is no training
        self._writer.tick()

    # --- what is observed ----------------------------------------------------------------------

    def write(self, event: schema.Event) -> None:
        """Write an event at once. If another write hangs, the event waits in the queue."""
        if not self._given_up and not self._writer.write(event, timeout=_PATIENCE):
            self.queue.append(event)

    def write_failure(self, err: BaseException) -> None:
        """Write where a rank that `err` ends was, if it is one of a group."""
        if not self._given_up:
            self._writer.write_failure(err.__traceback__, timeout=_PATIENCE)

    def held_by(self, err: BaseException) -> tuple[str, ...]:
        """The lines that held most of a GPU's memory when `err` came, if that was recorded. It is
        written into the run folder."""
        return self.tracer.out_of_memory(err, self.step_now)

    def write_memory(self) -> None:
        """Write the memory at the end of a rank that was over before its first heartbeat."""
        if not self._given_up:
            self._writer.write_memory(timeout=_PATIENCE)

    def stepped(self, step: Step) -> None:
        """Record an optimizer step with all its fields, not just its loss."""
        self.queue.append(step)

    def drop(self, loss: float | PendingLoss | None) -> None:
        """Discard a loss. One that is on its way from a GPU still has to arrive, to free its
        slot."""
        if isinstance(loss, PendingLoss):
            self.queue.append(Values({"": loss}, dropped=True))

    def metric(self, values: Mapping[str, object]) -> None:
        """Record named values of the current step, from `gpu_engine.log`."""
        self.queue.append(Values({name: self._read(v) for name, v in values.items()}))
        self._writer.warn_of_names(values, self.write)

    def logged(self, values: dict[str, Any]) -> None:
        """Record named values that the script passes to a logger. As that may happen at each step,
        only the latest values are written, once a second."""
        self.queue.append(Values({name: self._read(v) for name, v in values.items()}, latest=True))

    def settled_step(self) -> int:
        """The number of steps so far, including those in the queue; while a write hangs, the number
        known before."""
        self._writer.flush(timeout=_PATIENCE)
        return self.step_now

    def _read(self, value: Any) -> Any:
        """A logged value in a form that gives a number now or later, without waiting for a GPU."""
        if hasattr(value, "detach") and hasattr(value, "numel"):
            return self._losses.read(value) if value.numel() == 1 else None
        return value

    # --- what the writer calls (`record_writer.Source`) ----------------------------------------

    def new_lines(self) -> list[bytes]:
        """The events of everything in the queue that has arrived; after `close`, also of steps that
        were waiting to be assigned to a training."""
        lines = self._events.collect(self.queue, self.skipped)
        if self._closing:
            lines += self._events.end(self.skipped)
        self.step_now = self._events.step
        if self.findings is not None:
            lines += map(encode, self.findings.check(self.step_now, self.gpus,
                                                     losses=self._events.has_losses,
                                                     over=self._closing))
        times = self.parts.event(self.step_now, over=self._closing)
        if times is not None:
            lines.append(encode(times))
        return [] if self._given_up else lines

    def heartbeat(self, phase: str, since: float) -> schema.Phase:
        """The heartbeat without progress: the checkpoints of a script are not seen."""
        return schema.Phase(phase, since, self.step_now)

    def gpus(self) -> Sequence[int]:
        """The index of this rank's GPU, or of all GPUs on which it has ever held memory."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return []
        if self.device is not None:
            return [self.device]
        return [i for i in range(torch.cuda.device_count())
                if torch.cuda.memory_stats(i).get("reserved_bytes.all.peak")]
