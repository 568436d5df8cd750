"""The record of one process of a person's own script: claimed, written, and given up by forks.

Many processes of a command are no ranks: DataLoader workers, launch agents, helpers. One becomes
a rank when it first calls `backward()` or steps an optimizer, and claims the rank's record from
then on. A process that the supervisor itself started as a rank shows signs of life before that,
and gives way when another process claims its rank.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..events import schema
from ..worker.rank.record_writer import RecordWriter
from ..worker.rank.values import ReservedNames
from . import notes
from .claim import Claim
from .lifeline import Lifeline
from .loss import Losses, PendingLoss
from .step_events import LateEvent, Logged, Step, StepEvents, Values
from .writer_thread import WriterThread

# What a rank of a script may be doing; compared by identity.
RUNNING = "running"
BACKWARD = "backward"
OPTIMIZER = "optimizer"

_PATIENCE = 5.0
"""Seconds that a script waits at its end, or with its last words, for a write that hangs."""


class ScriptRecorder:
    """A recorder that the script does not notice: its thread is none of Python's `threading`, it
    stops for the moment of a fork, and it prints nothing on the script's stderr."""

    def __init__(self, path: Path, run: Path, losses: Losses) -> None:
        """Append to `path`, in the run folder `run`; `losses` reads tensors. Raises OSError."""
        self.phase = "init"
        self.step_now = 0
        self.skipped = 0
        """Steps that a GradScaler left out."""
        self.device: int | None = None
        """Index of the GPU whose memory is this rank's; None: all that are used."""
        self.queue: deque[Any] = deque()
        """Steps and values that are to be told, as `StepEvents.take` takes them."""
        self.thread_ended: Callable[[], None] = lambda: None
        """Called in the thread that writes, when it ends."""
        self._losses = losses
        self._writer = RecordWriter(path, self, lambda text: notes.note(text, run))
        self._claim = Claim(path)
        self._lifeline = Lifeline.of_supervisor()
        self._events = StepEvents()
        self._reserved = ReservedNames()
        self._pid = os.getpid()
        self._thread: WriterThread | None = None
        self._given_up = False
        self._closing = False

    # --- who may write -------------------------------------------------------------------------

    def claim(self) -> bool:
        """Hold the rank from now on; False: another process does."""
        return self._claim.take()

    def give_up(self) -> None:
        """Write no more, and free the rank for others."""
        self._given_up = True
        self.queue.clear()
        self._claim.release()

    # --- the thread ----------------------------------------------------------------------------

    @property
    def started(self) -> bool:
        """Whether the thread runs, or hangs in a write."""
        return self._thread is not None

    def begin(self) -> None:
        """Have the thread run: whether it never did, has ended, or was told to end and hangs."""
        thread = self._thread
        if thread is None or not thread.go_on():
            self._thread = WriterThread(self._tick, self._has_ended)

    def pause(self) -> None:
        """End the thread for now, within a moment; one that hangs in a write is left alone."""
        thread = self._thread
        if thread is not None and thread.end():
            self._thread = None

    def close(self) -> None:
        """End the thread and write all that is left: no more steps will come."""
        self.pause()
        self._closing = True
        self._writer.flush(timeout=_PATIENCE)

    def _has_ended(self, thread: WriterThread) -> None:
        if self._thread is thread:
            self._thread = None
            self.thread_ended()

    def _tick(self) -> None:
        self._writer.guard(self._look_and_write)

    def _look_and_write(self) -> None:
        if os.getpid() != self._pid or self._given_up:
            return
        if self._claim.is_anothers():
            self._given_up = True
            return
        if self._lifeline is not None:
            self._lifeline.check()
        self._writer.tick()

    # --- what is observed ----------------------------------------------------------------------

    def write(self, event: schema.Event) -> None:
        """Write an event at once; while another write hangs, it waits in the queue."""
        if not self._given_up and not self._writer.write(event, timeout=_PATIENCE):
            self.queue.append(LateEvent(event))

    def write_memory(self) -> None:
        """Write the memory at the end of a rank that was over before its first heartbeat."""
        if not self._given_up:
            self._writer.write_memory(timeout=_PATIENCE)

    def stepped(self, step: Step) -> None:
        """A step of an optimizer of which there is more to tell than its loss."""
        self.queue.append(step)

    def drop(self, loss: float | PendingLoss | None) -> None:
        """A loss that is not to be told; one that is on its way still has to arrive."""
        if isinstance(loss, PendingLoss):
            self.queue.append(Values({"": loss}))

    def metric(self, values: dict[str, Any]) -> None:
        """Named values of the present step, from `gpu_engine.log`."""
        self.queue.append(Values({name: self._read(v) for name, v in values.items()}))
        text = self._reserved.warning(values)
        if text is not None:
            self.write(schema.Warning(text))

    def logged(self, values: dict[str, Any]) -> None:
        """Named values that the script hands to some logger, perhaps at each step: the latest
        are recorded once a second."""
        self.queue.append(Logged({name: self._read(v) for name, v in values.items()}))

    def settled_step(self) -> int:
        """Steps so far, with all that is in the queue; as far as known while a write hangs."""
        self._writer.flush(timeout=_PATIENCE)
        return self.step_now

    def _read(self, value: Any) -> Any:
        """A value as a number now or later, without waiting for a GPU."""
        if hasattr(value, "detach") and hasattr(value, "numel"):
            return self._losses.read(value) if value.numel() == 1 else None
        return value

    # --- what the writer asks ------------------------------------------------------------------

    def new_lines(self) -> list[bytes]:
        """Events of all in the queue that has arrived; while closing, of all that is known."""
        lines = self._events.take(self.queue, self.skipped)
        if self._closing:
            lines += self._events.end(self.skipped)
        self.step_now = self._events.step
        return [] if self._given_up else lines

    def heartbeat(self, phase: str, since: float) -> schema.Phase:
        """Without more: a script writes its checkpoints unseen."""
        return schema.Phase(phase, since, self.step_now)

    def gpus(self) -> Sequence[int]:
        """This rank's GPU, or all on which it has ever held memory."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return []
        if self.device is not None:
            return [self.device]
        return [i for i in range(torch.cuda.device_count())
                if torch.cuda.memory_stats(i).get("reserved_bytes.all.peak")]
