"""One rank's record: what the loop says goes to the events file, written by another thread.

The loop pays a few microseconds a step: it appends to a queue. Losses on a GPU are copied into
pinned host memory behind the step that made them and read when their event has passed; nothing
here ever waits for the GPU. Standard library until `attach`; started before torch is imported.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..events import schema
from ..events.writer import EventWriter, encode
from . import captures

if TYPE_CHECKING:
    import torch

current: Recorder | None = None
"""The recorder of this process, for gpu_engine.log."""

_TICK = 0.1
_BEAT = 1.0
_EACH_LOSS_UP_TO = 20  # steps a tick, 200 a second; faster than that, the least and the largest
_RETRY = 5.0
_SLOTS = 4096
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Progress:
    """How far something is that takes long. Written by one thread, read by another."""

    done: int = 0
    """Bytes so far."""
    total: int | None = None
    """Bytes in all, about; None where that is not known."""


class Recorder:
    """Writes the events of one rank. Public attributes are plain, set by the loop as it goes."""

    def __init__(self, path: Path, *, echo: bool = False) -> None:
        """Append to `path`; `echo`: also a line of progress on stdout now and then."""
        self.phase = "init"
        self.step_now = 0
        self.total_steps: int | None = None
        self.training = False
        """Whether the first step has been begun: before, there is nothing to save."""
        self.skipped = 0
        self.nonfinite: tuple[int, float] | None = None
        """The first step whose loss was not a finite number, and that loss."""
        self.watch: Callable[[], None] | None = None
        """Called at each tick, in the recorder's thread."""
        self.writing: Progress | None = None
        """How far a checkpoint is, while one is written."""
        self.detail: str | Callable[[], str] = ""
        """What this rank is busy with or waits for, where the phase alone says too little."""
        self._out = _Patient(path, self._complain)
        self._lock = threading.RLock()
        self.queue: deque[Any] = deque()
        self._losses: _PinnedLosses | None = None
        self._devices: list[Any] = []
        self._echo = _Echo() if echo else None
        self._phase_seen = ("init", time.time())
        self._beat_due = 0.0
        self._rate_from = time.monotonic()
        self._complaint = ""
        self._told: set[str] = set()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)

    # --- what the main thread calls ---------------------------------------------------------

    def begin(self) -> None:
        self._thread.start()

    def attach(self, devices: list[torch.device]) -> None:
        """Say which GPUs this rank uses, once torch is there; none: losses are on the CPU."""
        gpus = [d for d in devices if d.type == "cuda"]
        if gpus:
            self._losses = _PinnedLosses(_SLOTS)
            self._devices = gpus

    def step(self, step: int, epoch: int, loss: torch.Tensor, lr: float, examples: int,
             wait: float) -> None:
        """One optimizer step: its loss (a detached tensor of shape ()), the examples this rank
        saw in it and the seconds it waited for them."""
        if self._losses is None:
            value = loss.item()
            if not math.isfinite(value):
                self._note(step, value)
        else:
            value = self._losses.put(loss)
        self.queue.append((step, epoch, value, lr, examples, wait, time.monotonic()))

    def mark(self) -> None:
        """Training goes on from here: what came between is no part of the rates."""
        self.queue.append((time.monotonic(),))

    def metric(self, values: dict[str, Any]) -> None:
        """Named values of the present step. Tensors are read later, in the other thread."""
        self.queue.append((self.step_now, {k: _hold(v) for k, v in values.items()}))
        self._warn_of_names(values)

    def evaluated(self, step: int, values: dict[str, float]) -> None:
        """What an evaluation at this step has found."""
        self.write("eval", step=step, values=values)
        self._warn_of_names(values)

    def _warn_of_names(self, values: dict[str, Any]) -> None:
        if not schema.OWN_NAMES.isdisjoint(values):
            text = schema.apart_in_words(values)
            if text not in self._told:
                self._told.add(text)
                self.write("warning", message=text)

    def write(self, kind: str, **fields: Any) -> None:
        """An event that is written at once, after everything that came before it; its fields
        are those of the kind's class in `events.schema`."""
        event = schema.KINDS[kind](**fields)
        with self._lock:
            self._flush()
            self._out.write(encode(event), now=True)

    def settle(self) -> None:
        """Wait until the losses of all steps so far are read. Waits for the GPU: not in a step."""
        with self._lock:
            if self._losses is not None:
                self._losses.wait()
            self._flush()

    def close(self) -> None:
        self._done.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(2.0)
        with self._lock:
            self._flush()

    # --- the other thread -------------------------------------------------------------------

    def _run(self) -> None:
        while not self._done.wait(_TICK):
            self._tick_safely()

    def _tick_safely(self) -> None:
        try:
            self._tick()
        except Exception as err:  # noqa: BLE001 - a fault in telemetry never ends training
            text = f"{type(err).__name__}: {err}"
            if text != self._complaint:  # ten times a second would fill the log
                self._complain(text)
            self._complaint = text

    def _complain(self, text: str) -> None:
        """Say what is wrong with the record itself."""
        sys.stderr.write(f"recorder: {text}\n")

    def _tick(self) -> None:
        captures.leave_alone()
        if self.watch is not None:
            self.watch()
        with self._lock:
            self._flush()
            now = time.time()
            if self.phase != self._phase_seen[0]:
                self._phase_seen = (self.phase, now)
            if time.monotonic() >= self._beat_due:
                self._beat_due = time.monotonic() + _BEAT
                phase, since = self._phase_seen
                self._out.write(
                    encode(schema.Phase(phase, round(since, 3), self.step_now, **self._busy())),
                    encode(self._memory()))
            if self._echo is not None:
                self._echo.tick(self)

    def _busy(self) -> dict[str, Any]:
        writing, detail = self.writing, self.details()
        fields = {"done": writing.done, "total": writing.total} if writing is not None else {}
        return fields | ({"detail": detail} if detail else {})

    def details(self) -> str:
        """`detail` as it is now."""
        detail = self.detail
        return detail() if callable(detail) else detail

    def _flush(self) -> None:
        steps, lines = [], []
        while self.queue:
            item = self.queue[0]
            if len(item) < 3 and steps:  # in the order in which they happened
                lines.append(self._steps(steps))
                steps = []
            if len(item) == 1:
                self._rate_from = item[0]
            elif len(item) == 2:
                step, values = item
                lines.append(encode(schema.Metric(
                    step, {k: _read(v) for k, v in values.items()})))
            else:
                loss = item[2]
                if self._losses is not None:
                    if not self._losses.ready(loss):
                        break
                    loss = self._losses.take(loss)
                    if loss is not None and not math.isfinite(loss):
                        self._note(item[0], loss)
                steps.append((*item[:2], loss, *item[3:]))
            self.queue.popleft()
        if steps:
            lines.append(self._steps(steps))
        if lines:
            self._out.write(*lines)

    def _steps(self, steps: list[tuple]) -> bytes:
        step, epoch, _, lr, _, _, end = steps[-1]
        took = max(end - self._rate_from, 1e-9)
        self._rate_from = end
        losses = [x for s in steps if (x := s[2]) is not None]
        fields = {"step": step, "n": len(steps), "epoch": epoch} | losses_of(losses)
        rate = sum(s[4] for s in steps) / took
        fields |= {"lr": lr, "samples_per_s": round(rate, 1),
                   "data_wait": round(min(sum(s[5] for s in steps) / took, 1.0), 4),
                   "skipped": self.skipped}
        if self._echo is not None:
            self._echo.saw(step, epoch, fields.get("loss"), lr, rate)
        return encode(schema.Step(**fields))

    def _note(self, step: int, loss: float) -> None:
        if self.nonfinite is None:
            self.nonfinite = (step, loss)

    def _memory(self) -> schema.Memory:
        fields = {}
        if self._devices:
            import torch

            stats = [torch.cuda.memory_stats(d) for d in self._devices]  # host-side counters
            for name, key in (("gpu_allocated", "allocated_bytes.all.current"),
                              ("gpu_reserved", "reserved_bytes.all.current"),
                              ("gpu_peak", "allocated_bytes.all.peak")):
                fields[name] = tuple(s.get(key, 0) for s in stats)
        return schema.Memory(_rss(), **fields)


def losses_of(losses: list[float], each_up_to: int = _EACH_LOSS_UP_TO) -> dict[str, Any]:
    """The fields of a step event that say what these losses were."""
    if not losses:
        return {}
    total = sum(losses)
    fields: dict[str, Any] = {"loss": _short(total / len(losses))}
    if len(losses) <= each_up_to:
        fields["losses"] = tuple(map(_short, losses))
    else:
        finite = losses
        if not math.isfinite(total):
            finite = [x for x in losses if math.isfinite(x)] or losses
        fields["loss_min"], fields["loss_max"] = _short(min(finite)), _short(max(finite))
        fields["loss_last"] = _short(losses[-1])
    return fields


class _PinnedLosses:
    """A ring of losses in pinned host memory, each with the event that says it has arrived.

    Reading before the event has passed would give garbage, so nothing is read before.
    """

    def __init__(self, slots: int) -> None:
        import torch

        self._ring = torch.empty(slots, dtype=torch.float64, pin_memory=True)
        self._events = [torch.cuda.Event() for _ in range(slots)]
        self._slots = slots
        self._put = 0
        self._taken = 0

    def put(self, loss: torch.Tensor) -> int | None:
        """Start copying; the number to read it by. None when the ring is full: rather lose a
        figure than wait."""
        if self._put - self._taken >= self._slots:
            return None
        slot = self._put % self._slots
        self._ring[slot].copy_(loss, non_blocking=True)
        self._events[slot].record()
        self._put += 1
        return slot

    def ready(self, slot: int | None) -> bool:
        return slot is None or self._events[slot].query()

    def take(self, slot: int | None) -> float | None:
        if slot is None:
            return None
        self._taken += 1
        return self._ring[slot].item()

    def wait(self) -> None:
        if self._put > self._taken:
            self._events[(self._put - 1) % self._slots].synchronize()


class _Patient:
    """An events file that survives a full disk: it pauses, counts what it leaves out, and says
    so when there is room again."""

    def __init__(self, path: Path, complain: Callable[[str], None]) -> None:
        self._out = EventWriter(path)
        self._complain = complain
        self._paused_at: float | None = None
        self._retry_at = 0.0
        self._lost = 0

    def write(self, *lines: bytes, now: bool = False) -> None:
        """`now`: try even where the last try was a moment ago."""
        urgent, now = now, time.monotonic()
        if self._paused_at is not None and now < self._retry_at and not urgent:
            self._lost += len(lines)
            return
        try:
            if self._paused_at is not None:
                # The write that failed may have left half a line: close it first.
                self._out.write(b"\n", encode(schema.Warning(
                    f"events could not be written for {now - self._paused_at:.0f} s "
                    f"(is the disk full?); {self._lost} are missing")))
                self._paused_at, self._lost = None, 0
            self._out.write(*lines)
        except OSError as err:
            if self._paused_at is None:
                self._paused_at = now
                self._complain(f"events can't be written: {err}")
            self._retry_at = now + _RETRY
            self._lost += len(lines)


class _Echo:
    """A line of progress on stdout every two seconds, while there is something new."""

    EVERY = 2.0

    def __init__(self) -> None:
        self._due = 0.0
        self._last: tuple | None = None

    def saw(self, *what: Any) -> None:
        self._last = what

    def tick(self, rec: Recorder) -> None:
        if self._last is None or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self.EVERY
        step, epoch, loss, lr, rate = self._last
        self._last = None
        total = f"/{rec.total_steps}" if rec.total_steps else ""
        shown = "?" if loss is None else f"{loss:.4f}"
        sys.stdout.write(f"step {step}{total} epoch {epoch + 1} loss {shown} lr {lr:.3g} "
                         f"{_si(rate)} examples/s\n")
        sys.stdout.flush()


def _hold(value: Any) -> Any:
    """A tensor as it is now; its own later changes don't reach the copy."""
    return value.detach().clone() if hasattr(value, "detach") else value


def _read(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None


def _short(value: float) -> float:
    """Nine digits: a float32 read back is the same float32."""
    return float(f"{value:.9g}")


def _rss() -> int | None:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return None


def _si(value: float) -> str:
    return f"{value / 1000:.1f}k" if value >= 1000 else f"{value:.0f}"
