"""The recorder of one process of a person's own script.

Many processes of a command are not ranks: DataLoader workers, launch agents, helpers. A process
becomes a rank, and claims the rank's record, when it first calls `backward()` or steps an
optimizer. A process that the supervisor itself started as a rank sends heartbeats before that, and
stops writing when another process claims the rank.
"""

from __future__ import annotations

import _thread
import fcntl
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..common import procs
from ..common.kept_file import KeptFile
from ..events import schema
from ..events.paths import inside
from ..events.writer import encode
from ..worker.rank.record_writer import RecordWriter
from . import identity
from .findings import Findings
from .loss import Losses, PendingLoss
from .parts import ScriptParts
from .steps import StepEvents, Values

_TICK = 0.5
"""Seconds between two looks of the thread, which take half a millisecond each, of the script's
processor time."""
_END_PATIENCE = 1.0
"""Seconds to wait for the thread's end while a write hangs."""


class ScriptRecorder(RecordWriter):
    """A recorder that the script does not notice: its thread does not appear in `threading`, so a
    script that counts its threads finds only its own, and it prints nothing to the script's
    stderr."""

    parts: ScriptParts
    patience = 5.0
    """Seconds for which a script waits at its end, or with an error, for a write that hangs."""

    def __init__(self, path: Path, run: Path, losses: Losses) -> None:
        """Append to `path` in the run folder `run`. `losses` reads logged tensors. Raises
        OSError."""
        super().__init__(path, lambda text: identity.note(text, run))
        self.skipped = 0
        """Steps that a GradScaler left out."""
        self.device: int | None = None
        """The index of the GPU whose memory is recorded; None for all GPUs in use."""
        self.queue: deque[Any] = deque()
        """Steps and values to be recorded, in the form that `steps` describes."""
        self.findings: Findings | None = None
        self.parts = ScriptParts()
        """What the time of the steps is spent on."""
        self._losses = losses
        self.claim = Claim(path)
        self._lifeline = Lifeline.of_supervisor()
        self._events = StepEvents()
        self._pid = os.getpid()
        self._stop, self._gone = _thread.allocate_lock(), _thread.allocate_lock()
        self._begun = False
        self._given_up = False
        self._closing = False

    def give_up(self) -> None:
        """Stop writing, and free the rank for other processes."""
        self._given_up = True
        self.queue.clear()
        self.claim.release()

    # --- the thread ----------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the thread, unless it runs."""
        if not self._begun:
            self._begun = self._stop.acquire() and self._gone.acquire()
            _thread.start_new_thread(self._live, ())

    def _live(self) -> None:
        try:
            # Costs less than any other way to wait.
            while not (self._stop.acquire(timeout=_TICK) or self._given_up):
                self._tick()
        finally:
            self._gone.release()

    def close(self) -> None:
        """End the thread and write everything that is left. No more steps may follow. A thread
        that hangs in a write, as on a disk that does not answer, is left as it is."""
        if self._begun:
            self._stop.release()
            self._gone.acquire(timeout=_END_PATIENCE)
        self._closing = True
        self.flush()

    def _tick(self) -> None:
        self.guard(self._collect_and_write)

    def _collect_and_write(self) -> None:
        if os.getpid() != self._pid or self._given_up:
            return
        if self.claim.held_by_another():
            self._given_up = True
            return
        if self._lifeline is not None:
            self._lifeline.check()
        main = threading.main_thread()
        if self.parts.thread == main.ident and not main.is_alive():
            self.phase = "done"  # what functions of atexit or other threads do is no training
        self.tick()

    def _write_heartbeat(self) -> None:
        if not self._closing:  # after the end of a rank nothing else is to follow
            super()._write_heartbeat()

    # --- what is observed ----------------------------------------------------------------------

    def write(self, event: schema.Event) -> bool:
        """Write an event at once. If another write hangs, the event waits in the queue."""
        if self._given_up:
            return False
        written = super().write(event)
        if not written:
            self.queue.append(event)
        return written

    def drop(self, loss: float | PendingLoss | None) -> None:
        """Discard a loss. One that is on its way from a GPU still has to arrive, to free its
        slot."""
        if isinstance(loss, PendingLoss):
            self.queue.append(Values({"": loss}, dropped=True))

    def metric(self, values: Mapping[str, object]) -> None:
        """Record named values of the current step, from `gpu_engine.log`."""
        self.queue.append(Values({name: self._read(v) for name, v in values.items()}))
        self.warn_of_names(values)
        self.warn_of_values(values)

    def logged(self, values: dict[str, Any]) -> None:
        """Record named values that the script passes to a logger. As that may happen at each step,
        only the latest values are written, once a second."""
        self.queue.append(Values({name: self._read(v) for name, v in values.items()}, latest=True))

    def _read(self, value: Any) -> Any:
        """A logged value in a form that gives a number now or later, without waiting for a GPU."""
        if hasattr(value, "detach") and hasattr(value, "numel"):
            return self._losses.read(value) if value.numel() == 1 else None
        return value

    # --- what there is to record ---------------------------------------------------------------

    def new_lines(self) -> list[bytes]:
        """The events of everything in the queue that has arrived."""
        lines = self._events.collect(self.queue, self.skipped, over=self._closing)
        self.step_now = self._events.step
        if self.findings is not None:
            lines += map(encode, self.findings.check(self.step_now, self.gpus,
                                                     losses=self._events.has_losses,
                                                     over=self._closing))
        times = self.parts.event(self.step_now, over=self._closing)
        if times is not None:
            lines.append(encode(times))
        return [] if self._given_up else lines

    def gpus(self) -> Sequence[int]:
        """The index of this rank's GPU, or of all GPUs on which it has ever held memory."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return []
        if self.device is not None:
            return [self.device]
        return [i for i in range(torch.cuda.device_count())
                if torch.cuda.memory_stats(i).get("reserved_bytes.all.peak")]

# ------------------------------------------------------------------------------------------------
# The lock on a rank's events file, so that no two processes write as the same rank.


class Claim:
    """One process's claim on a rank. The kernel releases it when the process ends."""

    def __init__(self, path: Path) -> None:
        """`path`: the rank's events file, which must exist. Nothing is claimed yet. Raises
        OSError."""
        self._file = KeptFile(*inside(path))
        self._held = False

    def acquire(self) -> bool:
        """Claim the rank. Returns False if another process holds it."""
        for _ in range(5):  # `held_by_another` in another process holds the lock for a moment
            if self._lock():
                self._held = True
                return True
            time.sleep(0.002)
        return False

    def held_by_another(self) -> bool:
        """Whether another process holds the rank. If the script has closed our file, and the claim
        with it, this claims the rank once more."""
        if self._held and self._file.ours:
            return False
        locked = self._lock()
        if locked and not self._held:
            fcntl.flock(self._file.descriptor(), fcntl.LOCK_UN)
        return locked is False

    def release(self) -> None:
        """Free the rank for other processes. Call it once, at the end."""
        self._file.close()

    def _lock(self) -> bool | None:
        """Whether the lock is ours now; None if that can't be known, as the file was closed in this
        moment."""
        try:
            fcntl.flock(self._file.descriptor(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return None
        return True

# ------------------------------------------------------------------------------------------------
# Ends a rank that nobody could stop any more.
#
# Ranks that a person's own launcher has started have no parent-death signal. If their supervisor
# is killed, its guard ends them. If both are killed at once, each rank ends itself.


_EVERY = 1.0
_GONE_PATIENCE = 2.0  # longer than the guard takes


class Lifeline:
    """Watches the supervisor, known by its pid and start time."""

    def __init__(self, pid: int, start_ticks: int) -> None:
        self._pid, self._start_ticks = pid, start_ticks
        self._due = 0.0
        self._gone_since: float | None = None

    @classmethod
    def of_supervisor(cls) -> Lifeline | None:
        """The lifeline to this run's supervisor. None if it can't be seen from here, as on another
        machine or in another pid namespace: it may well be alive."""
        pid, _, ticks = os.environ.get("GPU_PANEL_SUPERVISOR", "").partition(":")
        if not (pid.isdecimal() and ticks.isdecimal()) or not procs.alive(int(pid), int(ticks)):
            return None
        return cls(int(pid), int(ticks))

    def check(self) -> None:
        """Check on the supervisor, once a second at most. Kills this process if the supervisor has
        been gone for two seconds."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + _EVERY
        if procs.alive(self._pid, self._start_ticks):
            self._gone_since = None
        elif self._gone_since is None:
            self._gone_since = now
        elif now - self._gone_since >= _GONE_PATIENCE:
            os.kill(os.getpid(), signal.SIGKILL)
