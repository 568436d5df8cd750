"""Writes one rank's record: its events in order, and once a second a heartbeat and its memory.

The events come from a subclass: the recorder of the engine's training loop
(`worker/rank/recorder.py`), or the recorder of a person's own script (`observe/recorder.py`). Each
of them runs a thread that calls `tick`.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from ...events import notices, schema
from ...events.writer import EventWriter, encode
from . import memory
from .standing import StandingStill
from .tracer import Tracer

if TYPE_CHECKING:
    import torch


current: Any = None
"""The recorder of this process, where `gpu_engine.log` finds it; None if the process is not a rank,
or not yet."""
HEARTBEAT = 1.0
"""Seconds between two heartbeats."""
_RETRY = 5.0
"""Seconds between two tries to write to a full disk."""


class RecordWriter:
    """One rank's events file. Its methods may be called from any thread. A subclass says what there
    is to record, with the three methods at the end; they are called while the record is locked, in
    whichever thread calls `tick`, `write` or `flush`."""

    parts: Any
    """The `StepParts` of the subclass."""
    patience = -1.0
    """Seconds for which a call waits while another thread holds the record; -1: no limit."""

    def __init__(self, path: Path, complain: Callable[[str], None]) -> None:
        """Append to `path`. `complain` is called with a sentence when the record itself has a
        problem. Raises OSError."""
        self.step_now = 0
        """Steps so far."""
        self.phase = "init"
        """What the rank is doing now."""
        self._complain = complain
        self._file = _EventsFile(path, complain)
        self._lock = threading.RLock()  # a signal handler may write while a write is under way
        self._phase_since = ("init", time.time())
        self._heartbeat_due = 0.0
        self._last_fault = ""
        self._told: set[str] = set()
        self._still = StandingStill()
        self._filling = memory.Filling()
        self._path = path
        self.tracer = Tracer(path)
        """Traces steps on request."""

    def write(self, event: schema.Event) -> bool:
        """Write an event at once, after everything that came before it. Returns False, with nothing
        written, if another thread holds the record for longer than `patience`."""
        with self._locked() as locked:
            if locked:
                self._write_new()
                self._file.write(encode(event), urgent=True)
        return locked

    def flush(self) -> None:
        """Write what is new, unless another thread holds the record for longer than `patience`."""
        with self._locked() as locked:
            if locked:
                self._write_new()

    def write_memory(self) -> None:
        """Write the memory, unless a heartbeat has done so before: a process that is over within
        a moment has none."""
        if not self._heartbeat_due:
            self.write(memory.in_use(self.gpus()))

    def write_failure(self, err: BaseException) -> None:
        """Write where a rank that `err` ends was, if it is one of a group."""
        def write() -> None:
            stands = self._still.failed(self.step_now, self.phase, err.__traceback__)
            if stands is not None:
                self.write(stands)

        self.guard(write)

    def held_by(self, err: BaseException) -> tuple[str, ...]:
        """The lines that held most of a GPU's memory when `err` came, if that was recorded. It is
        written into the run folder."""
        run, rank = self._path.parent.parent, self._path.stem
        return memory.out_of_memory(err, run, f"{rank}-oom-step-{self.step_now}")

    def warn_of_names(self, names: Iterable[str]) -> None:
        """Write a warning, once, about logged names that clash with an event's own fields and are
        recorded under another name."""
        self._warn_once(schema.reserved_warning(names))

    def warn_of_values(self, values: Mapping[str, object]) -> None:
        """Write a warning, once for each name, about values of `gpu_engine.log` that are no
        numbers. A tensor's own value is not looked at, which may be on its way from a GPU."""
        for name, value in values.items():
            tensor: Any = value if hasattr(value, "detach") and hasattr(value, "numel") else None
            many = None if tensor is None else tensor.numel()
            if many is None and number(value) is None:
                what = repr(value[:40]) if isinstance(value, str) else type(value).__name__
                self._warn_once(f"gpu_engine.log: {name} is not recorded: " + (
                    "it is too large" if isinstance(value, int) else f"{what} is no number"), name)
            elif many is not None and many != 1:
                self._warn_once(f"gpu_engine.log: {name} is not recorded: the tensor has {many:,} "
                                "values", name)

    def _warn_once(self, text: str | None, key: str | None = None) -> None:
        if text is not None and (key or text) not in self._told:
            self._told.add(key or text)
            self.write(schema.Warning(text))

    def tick(self) -> None:
        """Write what is new, and once a second the heartbeat and the memory. The
        recorder's thread calls it several times a second."""
        exclude_thread()
        traced = self.tracer.tick()
        with self._lock:
            self._write_new()
            if traced is not None:
                self._file.write(encode(traced))
            phase, now = self.phase, time.time()
            if phase != self._phase_since[0]:
                self._phase_since = (phase, now)
            if time.monotonic() >= self._heartbeat_due:
                self._heartbeat_due = time.monotonic() + HEARTBEAT
                self._write_heartbeat()

    def guard(self, work: Callable[[], None]) -> None:
        """Call `work`. An error in it is reported and goes no further, as a problem of the record
        must never end training."""
        try:
            work()
        except Exception as err:  # noqa: BLE001
            fault = f"{type(err).__name__}: {err}"
            if fault != self._last_fault:  # repeated at each tick, it would fill the log
                self._complain(fault)
            self._last_fault = fault

    @contextlib.contextmanager
    def _locked(self) -> Iterator[bool]:
        locked = self._lock.acquire(timeout=self.patience)
        try:
            yield locked
        finally:
            if locked:
                self._lock.release()

    def _write_new(self) -> None:
        lines = self.new_lines()
        if lines:
            self._file.write(*lines)

    def _write_heartbeat(self) -> None:
        phase, since = self._phase_since
        self._file.write(
            encode(self.heartbeat(phase, round(since, 3))),
            encode(memory.in_use(self.gpus())))
        stands = self._still.event(self.step_now, phase, self.parts)
        if stands is not None:
            self._file.write(encode(stands))
        filling = self._filling.look(time.monotonic())
        if filling is not None:
            self._file.write(encode(filling))

    # --- what a subclass says -------------------------------------------------------------------

    def new_lines(self) -> list[bytes]:
        """The events since the last call whose values are known by now, in order, one a line."""
        raise NotImplementedError

    def heartbeat(self, phase: str, since: float) -> schema.Phase:
        """The heartbeat event of a rank that has been in `phase` since `since` (Unix seconds):
        without progress, as the checkpoints of a script are not seen."""
        return schema.Phase(phase, since, self.step_now)

    def gpus(self) -> Sequence[int | torch.device]:
        """The GPUs whose memory is this rank's, as torch.cuda takes them."""
        raise NotImplementedError


class _EventsFile:
    """Appends events. On a full disk it pauses and counts the events that are lost; when there is
    room again, it records a warning with their number."""

    def __init__(self, path: Path, complain: Callable[[str], None]) -> None:
        """Open `path` for appending. `complain` is called with a sentence when the first write
        fails. Raises OSError."""
        self._out = EventWriter(path)
        self._complain = complain
        self._paused_at: float | None = None
        self._retry_at = 0.0
        self._lost = 0

    def write(self, *lines: bytes, urgent: bool = False) -> None:
        """Append whole lines. `urgent`: try even if the last try has just failed."""
        now = time.monotonic()
        if self._paused_at is not None and now < self._retry_at and not urgent:
            self._lost += len(lines)
            return
        try:
            if self._paused_at is not None:
                # The write that failed may have left half a line: close it first.
                self._out.write(b"\n", encode(notices.not_recorded(
                    now - self._paused_at, self._lost)))
                self._paused_at, self._lost = None, 0
            self._out.write(*lines)
        except OSError as err:
            if self._paused_at is None:
                self._paused_at = now
                self._complain(f"events can't be written: {err}")
            self._retry_at = now + _RETRY
            self._lost += len(lines)

# ------------------------------------------------------------------------------------------------
# Numbers in the form in which a record keeps them: losses of steps, and logged values.


class LossFields(TypedDict, total=False):
    """The fields of a `Step` event about its losses."""

    loss: float
    losses: tuple[float, ...]
    loss_min: float
    loss_max: float
    loss_last: float


def spans(losses: Sequence[float | None], each_up_to: int) -> list[slice]:
    """Parts of consecutive steps, given their losses (None: unknown), for an event each, so that
    nobody has to guess which step a loss is of: the losses of a part are all known or all unknown.
    Of more than `each_up_to` steps, which are not listed, the first bad loss has its own part."""
    if len(losses) <= each_up_to:
        cuts = [i for i in range(1, len(losses))
                if (losses[i] is None) != (losses[i - 1] is None)]
    else:
        bad = next((i for i, x in enumerate(losses) if x is not None and not math.isfinite(x)), -1)
        cuts = [bad, bad + 1] if bad >= 0 else []
    ends = [*cuts, len(losses)]
    return [slice(a, b) for a, b in zip([0, *cuts], ends) if a < b]


def loss_fields(losses: Sequence[float | None], each_up_to: int) -> LossFields:
    """The fields of an event for steps with these losses (None: unknown): their mean, and each of
    them; of more than `each_up_to`, or if some are unknown, only the smallest, the largest and the
    last. {} if none is known."""
    known = [x for x in losses if x is not None]
    if not known:
        return {}
    total = sum(known)
    fields: LossFields = {"loss": short(total / len(known))}
    if len(known) == len(losses) <= each_up_to:
        fields["losses"] = tuple(map(short, known))
    else:
        finite = known
        if not math.isfinite(total):
            finite = [x for x in known if math.isfinite(x)] or known
        fields["loss_min"], fields["loss_max"] = short(min(finite)), short(max(finite))
        fields["loss_last"] = short(known[-1])
    return fields


def short(value: float) -> float:
    """`value` rounded to nine digits, enough to read back the same float32."""
    return float(f"{value:.9g}")


def number(value: Any) -> float | None:
    """A logged value as a number; None if it is not a number, or a whole one that no float can
    hold. Waits for the GPU if it is a tensor on one."""
    try:
        return float(value)
    except Exception:  # noqa: BLE001 - of an object of the script's, any
        return None

# ------------------------------------------------------------------------------------------------
# Keeps the recorder's thread from spoiling a CUDA graph that the task captures.
#
# `torch.cuda.graph` captures in the mode "global". While it does, CUDA refuses calls from *any*
# thread that wait for the GPU or query an event, and such a call spoils the capture. A thread can
# exclude its own calls with `cudaThreadExchangeStreamCaptureMode` (CUDA Runtime API, 6.4 Stream
# Management), as PyTorch's watchdog for NCCL does. torch has no function for that, so it is
# called in the CUDA runtime library that torch has loaded.


_RELAXED = 2  # cudaStreamCaptureModeRelaxed
_thread = threading.local()


def exclude_thread() -> None:
    """Exclude this thread's calls from other threads' captures, once CUDA is in use. This holds
    for the thread's life; calling it again costs nothing."""
    if getattr(_thread, "apart", False):
        return
    begun = getattr(sys.modules.get("torch.cuda"), "is_initialized", None)
    if begun is None or not begun():
        return
    _thread.apart = True
    # The library that this process has loaded: another copy would know nothing of its threads.
    paths = (line.partition("/")[2] for line in Path("/proc/self/maps").read_text().splitlines())
    path = next((f"/{path}" for path in paths if "/libcudart.so" in path), None)
    exchange = path and getattr(ctypes.CDLL(path), "cudaThreadExchangeStreamCaptureMode", None)
    if exchange:
        exchange(ctypes.byref(ctypes.c_int(_RELAXED)))
