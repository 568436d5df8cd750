"""Which rank an observed process is, and its record: claimed, written, ended, given up by forks.

Many processes of a command are none: DataLoader workers, launch agents, helpers. One becomes a
rank when it first calls `backward()` or steps an optimizer, and holds a lock on the rank's events
file from then on, so that no two write as one. A process that the supervisor itself started as a
rank shows signs of life before that, and gives way when another claims its rank.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from .. import events, procs
from . import memory, observe_lifeline, observe_loss, observe_thread, recorder

DOING = "running", "backward", "optimizer"
"""What a rank of a script may be doing; compared by identity."""

_END = 5.0
"""Seconds that a script waits at its end, or with its last words, for a write that hangs."""
_EACH_LOSS_UP_TO = 40  # as many a second as of the engine's own ranks
_OTHERS = 8  # optimizers beside the first whose losses are kept


class Step(NamedTuple):
    """One step of an optimizer. Loss and norm: a number, one that comes later, or None."""

    index: int
    name: str
    step: int
    loss: Any
    lr: float | None
    norm: Any

    @property
    def arrived(self) -> bool:
        return observe_loss.arrived(self.loss) and observe_loss.arrived(self.norm)


class Named(NamedTuple):
    """Named values, some of which may come later; one without a name is only waited for."""

    step: int
    values: dict[str, Any]

    @property
    def arrived(self) -> bool:
        return all(map(observe_loss.arrived, self.values.values()))


class Line(NamedTuple):
    """An event that is written when its turn has come."""

    text: bytes

    @property
    def arrived(self) -> bool:
        return True


class _Span:
    """Steps of one optimizer that make one event. What they don't say is as it was before."""

    def __init__(self) -> None:
        self.index = 0
        self.name = ""
        self.step = 0
        self.lr: float | None = None
        self.clear()

    def clear(self) -> None:
        self.n = 0
        self.losses: list[float] = []
        self.norm: float | None = None

    def took(self, loss: float) -> None:
        self.step += 1
        self.n += 1
        self.losses.append(loss)

    def took_from(self, queue: deque[Any]) -> None:
        """All that `queue` begins with that is the loss of one more step."""
        losses = self.losses
        before = len(losses)
        with contextlib.suppress(IndexError):  # nothing is left: cheaper than to ask each time
            while type(queue[0]) is float:
                losses.append(queue.popleft())
        count = len(losses) - before
        self.step += count
        self.n += count

    def took_at_length(self, step: Step) -> None:
        self.index, self.name, self.step, *_, self.lr, _ = step
        self.n += 1
        loss = observe_loss.taken(step.loss)
        if loss is not None:
            self.losses.append(loss)
        self.norm = observe_loss.taken(step.norm)


class Watcher(recorder.Recorder):
    """A recorder that nobody notices: its thread is none of Python's `threading`, it stops for
    the moment of a fork, and it says nothing on the script's stderr."""

    def __init__(self, path: Path, run: Path) -> None:
        """Raises OSError."""
        super().__init__(path)
        self.device: Any = None
        """Index of the GPU whose memory is this rank's; None: all that are used."""
        self.watch = observe_lifeline.held()
        self._run_folder = run
        self._pid = os.getpid()
        self._turn: observe_thread.Turn | None = None
        self.lost: Callable[[], None] = lambda: None
        """Called when the thread has ended, in it."""
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._claimed = False
        self._given_up = False
        self._spans = {0: _Span()}
        """By the optimizer's number, the first's first."""

    # --- who may write -------------------------------------------------------------------------

    def claim(self) -> bool:
        """Hold the rank from now on; False: another process does."""
        for _ in range(5):  # whoever only looks holds it for a moment
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                time.sleep(0.002)
            else:
                self._claimed = True
                return True
        return False

    def _taken(self) -> bool:
        """Whether another process has claimed the rank meanwhile."""
        if self._claimed:
            return False
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(self._file, fcntl.LOCK_UN)
        except OSError:
            return True
        return False

    def let_go(self) -> None:
        """Write no more, and free the rank for others."""
        self._given_up = True
        self.queue.clear()
        with contextlib.suppress(OSError):
            os.close(self._file)

    # --- the thread ----------------------------------------------------------------------------

    @property
    def started(self) -> bool:
        """Whether the thread runs, or hangs in a write."""
        return self._turn is not None

    def begin(self) -> None:
        """Have the thread run: whether it never did, has ended, or was asked to and hangs."""
        turn = self._turn
        if turn is None or not turn.go_on():
            self._turn = observe_thread.Turn(self._tick_safely, self._has_ended)

    def pause(self) -> None:
        """End the thread for now, within a moment; one that hangs in a write is left at that."""
        turn = self._turn
        if turn is not None and turn.end():
            self._turn = None

    def _has_ended(self, turn: observe_thread.Turn) -> None:
        if self._turn is turn:
            self._turn = None
            self.lost()

    def close(self) -> None:
        self.pause()
        if self._lock.acquire(timeout=_END):
            try:
                self._flush()
            finally:
                self._lock.release()

    def _tick(self) -> None:
        if os.getpid() != self._pid or self._given_up:
            return
        if self._taken():
            self._given_up = True
            return
        super()._tick()

    def write(self, kind: str, **fields: Any) -> None:
        """An event that is written at once; where a write hangs, it waits in the queue."""
        if self._given_up:
            return
        if not self._lock.acquire(timeout=_END):
            self.queue.append(Line(events.encode(kind, fields)))
            return
        try:
            super().write(kind, **fields)
        finally:
            self._lock.release()

    def _complain(self, text: str) -> None:
        note(text, self._run_folder)

    # --- what is observed ----------------------------------------------------------------------

    # There is an entry of the queue for each step, so it is small: a float is the loss of one more
    # step of the first optimizer; a tuple, an optimizer's number, the loss of one more step of it
    # and its learning rate.

    def took(self, step: Step) -> None:
        """A step of an optimizer of which more is to be told than that."""
        self.queue.append(step)

    def forget(self, value: Any) -> None:
        """Nobody wants this number; what is on its way still has to arrive."""
        if isinstance(value, observe_loss.Later):
            self.queue.append(Named(0, {"": value}))

    def metric(self, values: dict[str, Any]) -> None:
        self.queue.append(Named(self.step_now, {k: read(v) for k, v in values.items()}))

    def _flush(self) -> None:
        lines: list[bytes] = []
        queue, spans = self.queue, self._spans
        first = spans[0]

        def end_steps() -> None:
            if any(span.n for span in spans.values()):
                lines.append(self._observed())
                for span in spans.values():
                    span.clear()

        while queue:
            item = queue[0]
            if type(item) is float:
                first.took_from(queue)
                continue
            if type(item) is tuple:
                span = spans[item[0]]
                span.lr = item[2]
                span.took(item[1])
            elif not item.arrived:
                break
            elif type(item) is Step:
                spans.setdefault(item.index, _Span()).took_at_length(item)
            elif type(item) is Line:
                end_steps()
                lines.append(item.text)
            else:
                values = {k: observe_loss.taken(v) for k, v in item.values.items()}
                if "" not in values:
                    end_steps()  # in the order in which they happened
                    lines.append(events.encode("metric", {
                        "step": item.step, **{k: recorder._read(v) for k, v in values.items()}}))
            queue.popleft()
        end_steps()
        if lines and not self._given_up:
            self._out.write(*lines)

    def _observed(self) -> bytes:
        first, *more = self._spans.values()
        others = [span for span in more if span.n]
        fields: dict[str, Any] = {"step": first.step, "n": first.n, "lr": first.lr,
                                  "skipped": self.skipped}
        fields |= _losses(first)
        if first.norm is not None:
            fields["grad_norm"] = recorder._short(first.norm)
        if others:
            fields["others"] = {
                str(span.index): {"name": span.name, "step": span.step, "n": span.n}
                | _losses(span) for span in others if span.index <= _OTHERS}
        return events.encode("step", fields)

    def _memory(self) -> dict[str, Any]:
        torch = sys.modules.get("torch")
        self._devices = []
        if torch is not None and torch.cuda.is_initialized():
            used = [self.device] if self.device is not None else [
                i for i in range(torch.cuda.device_count())
                if torch.cuda.memory_stats(i).get("reserved_bytes.all.peak")]
            self._devices = used
        return super()._memory()


def read(value: Any) -> Any:
    """A value that a script logs, as a number now or later, without waiting for a GPU."""
    if hasattr(value, "detach") and hasattr(value, "numel"):
        from . import observe

        return observe.observer.losses.read(value) if value.numel() == 1 else None
    return value


def note(text: str, run: Path | None = None) -> None:
    """To the run's own list of our faults, where nothing better is left. Never raises."""
    with contextlib.suppress(Exception):
        folder = run or Path(os.environ["GPU_PANEL_RUN"])
        with (folder / "observe-errors.log").open("a") as file:
            file.write(f"{os.getpid()} {text}\n")


def identity() -> dict[str, Any]:
    """Which rank this process is now: as its process group says, else its environment, else the
    plan, where a command is one rank until it says otherwise."""
    env, torch = os.environ, sys.modules.get("torch")
    dist = getattr(torch, "distributed", None)
    if dist is not None and dist.is_available() and dist.is_initialized():
        rank, world = dist.get_rank(), dist.get_world_size()
    else:
        rank = _int(env.get("RANK"), _int(env.get("GPU_PANEL_RANK"), 0))
        world = _int(env.get("WORLD_SIZE"), 1)
    local = _int(env.get("LOCAL_RANK"), None)
    return {"rank": rank, "local_rank": local,
            "node": _int(env.get("GROUP_RANK"), _int(env.get("NODE_RANK"), 0)),
            "world_size": world}


def labels(who: dict[str, Any], cuda: int | None) -> list[str]:
    """The devices of the plan that are this rank's."""
    given = [x for x in os.environ.get("GPU_PANEL_DEVICES", "").split(";") if x]
    if who["world_size"] == 1 or len(given) < 2:
        return given or ["?"]
    place = cuda if cuda is not None else who["local_rank"]
    place = who["rank"] if place is None else place
    return [given[place]] if place < len(given) else ["?"]


def start_fields(who: dict[str, Any], device: list[str]) -> dict[str, Any]:
    pid = os.getpid()
    return {"rank": who["rank"], "local_rank": who["local_rank"], "node": who["node"], "pid": pid,
            "started": procs.start_ticks(pid), "device": device,
            "world_size": who["world_size"],
            "attempt": _int(os.environ.get("GPU_PANEL_ATTEMPT"), 1)}


def error_fields(err: BaseException) -> dict[str, Any]:
    fields = {"type": type(err).__name__, "message": str(err) or type(err).__name__,
              "traceback": "".join(traceback.format_exception(type(err), err, err.__traceback__))}
    with contextlib.suppress(Exception):
        fields |= memory.of_error(err)
    return fields


def _losses(span: _Span) -> dict[str, Any]:
    return recorder.losses_of(span.losses, _EACH_LOSS_UP_TO)


def _int(text: str | None, default: Any) -> Any:
    try:
        return int(text)
    except (TypeError, ValueError):
        return default

