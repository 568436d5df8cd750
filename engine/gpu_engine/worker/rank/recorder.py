"""The recorder of the engine's training loop, which writes to the events file in another thread.

The loop only appends to a queue, which takes a few microseconds a step. A loss on a GPU is copied
into pinned host memory after its step, and read once it has arrived (`pinned`); only `settle` waits
for the GPU. The recorder starts before torch is imported and needs only the
standard library until `attach`.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ...events import schema
from ...events.writer import encode
from .record_writer import RecordWriter, loss_fields, number, spans
from .step_parts import STEP, StepParts

if TYPE_CHECKING:
    import torch

    from .pinned import Ring

    _Step = tuple[int, int, float | None, int | None, Any, int, float, float]
    """One optimizer step, as the loop reports it, in a plain tuple, as that is made fastest:

    - step and epoch;
    - its loss; None if it is still on its way from a GPU, the ring was full, or it was left out;
    - the slot in the ring where the loss arrives; None if it comes from no GPU;
    - the learning rate as the optimizer has it, and the examples that this rank trained on;
    - the seconds that the step waited for its examples, and when it ended (monotonic).
    """

_TICK = 0.2
_LINE_EVERY = 2.0
"""Seconds between two lines of progress."""
_EACH_LOSS_UP_TO = 40  # losses a tick, 200 a second; of more, only the smallest and the largest


@dataclass
class Progress:
    """How far a long piece of work is. One thread writes it, another reads it."""

    done: int = 0
    """Bytes so far."""
    total: int | None = None
    """Bytes in all, roughly; None if unknown."""


class Recorder(RecordWriter):
    """Records one rank. The loop sets the public attributes as it goes."""

    parts: StepParts
    training = False
    """Whether the training loop has begun; before that, there is nothing to save."""

    def __init__(self, path: Path, *, echo: bool = False) -> None:
        """Append to `path`. `echo`: also print a line of progress now and then. Raises OSError."""
        super().__init__(path, _complain)
        self.parts = StepParts()
        """What the time of the steps is spent on, from when `training` is true."""
        self.leave: Callable[[str], None] = lambda outcome: None
        """Ends the process from any thread, whatever the main thread is stuck in."""
        self.total_steps: int | None = None
        self.skipped = 0
        self.nonfinite: tuple[int, float] | None = None
        """The first step whose loss was not a finite number, and that loss."""
        self.watches: list[Callable[[], None]] = []
        """Called at each tick, in the recorder's thread."""
        self.writing: Progress | None = None
        """The progress of a checkpoint, while one is being written."""
        self.detail: str | Callable[[], str] = ""
        """What this rank is doing or waiting for, if the phase alone says too little."""
        self._queue: deque[_Step | float | schema.Metric] = deque()
        """Steps, named values that may be tensors, and the moments at which training goes on after
        something else, such as an evaluation."""
        self._losses: Ring | None = None
        self._gpus: list[torch.device] = []
        self._rate_from = time.monotonic()
        self._echo = echo
        self._line, self._line_due = "", 0.0
        """A line of progress that is not printed yet, and when it may be."""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)

    # --- what the main thread calls ---------------------------------------------------------

    @property
    def phase(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What the rank is doing now."""
        return self._phase

    @phase.setter
    def phase(self, phase: str) -> None:
        self._phase = phase
        if self.training:
            self.parts.mark(phase)

    def begin(self) -> None:
        """Start the thread that writes."""
        self._thread.start()

    def attach(self, devices: list[torch.device]) -> None:
        """Say which devices this rank uses, once torch is imported. Without a `cuda` device among
        them, losses are read at once."""
        self._gpus = [d for d in devices if d.type != "cpu"]
        if any(d.type == "cuda" for d in devices):
            from .pinned import Ring

            self._losses = Ring()

    def step(self, step: int, epoch: int, loss: torch.Tensor | float, lr: Any, examples: int,
             wait: float) -> None:
        """Record one optimizer step: its `loss` (a number, or a detached tensor of shape ()), its
        learning rate (a number, a tensor that is not changed later, or None), how many `examples`
        this rank trained on, and the seconds that it had to `wait` for them."""
        value = slot = None
        if isinstance(loss, (float, int)):
            value = loss
        elif self._losses is None:
            value = loss.item()
        else:
            slot = self._losses.put(loss)
        if value is not None and value - value != 0.0:  # NaN or infinite
            self._not_finite(step, value)
        self._queue.append((step, epoch, value, slot, lr, examples, wait, time.monotonic()))
        if self.training:
            self.parts.mark(STEP)
        if self.tracer.wanted:
            self.tracer.stepped(step)

    def left_out(self, step: int, epoch: int, lr: Any) -> None:
        """Record that this optimizer step was left out with its examples: it has no loss. `lr` as
        for `step`."""
        self._queue.append((step, epoch, None, None, lr, 0, 0.0, time.monotonic()))

    def mark(self) -> None:
        """Note that training goes on now, so that the time since the last step is not counted in
        the rates."""
        self._queue.append(time.monotonic())
        if self.training:
            self.parts.mark("")

    def metric(self, values: Mapping[str, object]) -> None:
        """Record named values of the current step. Tensors are read later, in the other thread."""
        # Copies of tensors, which later changes don't reach.
        copies: Any = {name: value.detach().clone() if hasattr(value, "detach") else value
                       for name, value in cast("Mapping[str, Any]", values).items()}
        self._queue.append(schema.Metric(self.step_now, copies))
        self.warn_of_names(values)
        self.warn_of_values(values)

    def evaluated(self, step: int, values: dict[str, float]) -> None:
        """Record the values that an evaluation at this step gave."""
        self.write(schema.Eval(step, dict(values)))
        self.warn_of_names(values)

    def warn(self, text: str) -> None:
        """Write a warning at once: something that a person should know and that is not fatal."""
        self.write(schema.Warning(text))

    def settle(self) -> None:
        """Wait until the losses of all steps so far are read. This waits for the GPU, so it is not
        for use within a step."""
        if self._losses is not None:
            import torch

            torch.cuda.current_stream().synchronize()
        self.flush()

    def close(self) -> None:
        """End the thread and write what is left."""
        self._done.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(2.0)
        self.flush()

    def _not_finite(self, step: int, loss: float) -> None:
        if self.nonfinite is None:
            self.nonfinite = (step, loss)

    # --- the recorder's thread ----------------------------------------------------------------

    def _run(self) -> None:
        while not self._done.wait(_TICK):
            self.guard(self._tick)

    def _tick(self) -> None:
        for watch in self.watches:
            watch()
        self.tick()
        if self._line and time.monotonic() >= self._line_due:
            self._line_due = time.monotonic() + _LINE_EVERY
            sys.stdout.write(self._line)
            sys.stdout.flush()
            self._line = ""

    # --- what there is to record ------------------------------------------------------------

    def new_lines(self) -> list[bytes]:
        """The events of everything in the queue up to the first loss that is still on its way from
        a GPU. Steps that follow each other make one event, but for `values.spans`."""
        steps: list[_Step] = []
        lines: list[bytes] = []
        while self._queue:
            item = self._queue[0]
            if isinstance(item, tuple):
                if item[3] is not None and self._losses is not None:
                    if not self._losses.arrived(item[3]):
                        break
                    loss = self._losses.take(item[3])
                    if not math.isfinite(loss):
                        self._not_finite(item[0], loss)
                    item = (*item[:2], loss, *item[3:])
                steps.append(item)
            else:
                if steps:  # in the order in which they happened
                    lines += self._lines_of(steps)
                    steps = []
                if isinstance(item, (float, int)):
                    self._rate_from = item
                else:
                    read = {name: number(v) for name, v in item.values.items()}
                    lines.append(encode(schema.Metric(item.step, read)))
            self._queue.popleft()
        if steps:
            lines += self._lines_of(steps)
        times = self.parts.event(self.step_now,
                                 over=self.phase == "done" or self._done.is_set())
        if times is not None:
            lines.append(encode(times))
        return lines

    def _lines_of(self, steps: list[_Step]) -> list[bytes]:
        parts = spans([loss for _, _, loss, *_ in steps], _EACH_LOSS_UP_TO)
        return [self._line_of(steps[part]) for part in parts]

    def _line_of(self, steps: list[_Step]) -> bytes:
        step, epoch, _, _, lr, _, _, ended = steps[-1]
        _, _, losses, _, _, examples, waits, _ = zip(*steps)
        lr = number(lr)
        took = max(ended - self._rate_from, 1e-9)
        self._rate_from = ended
        rate = sum(examples) / took
        left_out = not any(examples)
        event = schema.Step(
            step, lr, self.skipped, n=len(steps), epoch=epoch,
            samples_per_s=None if left_out else round(rate, 1),
            data_wait=None if left_out else round(min(sum(waits) / took, 1.0), 4),
            **loss_fields(losses, _EACH_LOSS_UP_TO))
        if self._echo:  # for people who read the log without a panel
            of = f"/{self.total_steps}" if self.total_steps else ""
            loss = "?" if event.loss is None else f"{event.loss:.4f}"
            self._line = (f"step {step}{of} epoch {epoch + 1} loss {loss} "
                          f"lr {'?' if lr is None else f'{lr:.3g}'} "
                          f"{rate:,.0f} examples/s\n")
        return encode(event)

    def heartbeat(self, phase: str, since: float) -> schema.Phase:
        """The heartbeat event, with `done` and `total` while a checkpoint is being written, and
        with `detail` if there is one."""
        writing = self.writing
        return schema.Phase(phase, since, self.step_now, writing and writing.done,
                            writing and writing.total, self.details() or None)

    def gpus(self) -> Sequence[torch.device]:
        """The GPUs given to `attach`."""
        return self._gpus

    def details(self) -> str:
        """The text of `detail` as it is now."""
        detail = self.detail
        return detail() if callable(detail) else detail


def _complain(text: str) -> None:
    sys.stderr.write(f"recorder: {text}\n")
