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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..common import procs
from ..events import schema
from ..events.paths import events_path
from ..events.writer import append
from ..rank import memory, recorder
from . import (
    lifeline as observe_lifeline,
)
from . import (
    loss as observe_loss,
)
from . import (
    record as observe_record,
)
from . import (
    thread as observe_thread,
)

DOING = "running", "backward", "optimizer"
"""What a rank of a script may be doing; compared by identity."""

_END = 5.0
"""Seconds that a script waits at its end, or with its last words, for a write that hangs."""


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
        self._record = observe_record.Record()

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
                self._tell_all()
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
            self.queue.append(observe_record.Line(schema.KINDS[kind](**fields)))
            return
        try:
            super().write(kind, **fields)
        finally:
            self._lock.release()

    def _complain(self, text: str) -> None:
        note(text, self._run_folder)

    # --- what is observed ----------------------------------------------------------------------

    def took(self, step: observe_record.Step) -> None:
        """A step of an optimizer of which more is to be told than its loss."""
        self.queue.append(step)

    def forget(self, value: Any) -> None:
        """Nobody wants this number; what is on its way still has to arrive."""
        if isinstance(value, observe_loss.Later):
            self.queue.append(observe_record.Named({"": value}))

    def metric(self, values: dict[str, Any]) -> None:
        self.queue.append(observe_record.Named({k: read(v) for k, v in values.items()}))
        self._warn_of_names(values)

    def seen(self, values: dict[str, Any]) -> None:
        """Named values that go to some logger anyway, perhaps at each step: the latest are kept."""
        self.queue.append(observe_record.Seen({k: read(v) for k, v in values.items()}))

    def settled_step(self) -> int:
        """Steps so far, with all that is in the queue; as known where a write hangs."""
        if self._lock.acquire(timeout=_END):
            try:
                self._flush()
            finally:
                self._lock.release()
        return self.step_now

    def _flush(self) -> None:
        lines = self._record.take(self.queue, self.skipped)
        self.step_now = self._record.step
        if lines and not self._given_up:
            self._out.write(*lines)

    def _tell_all(self) -> None:
        """Nothing more will come."""
        self._flush()
        lines = self._record.end(self.skipped)
        self.step_now = self._record.step
        if lines and not self._given_up:
            self._out.write(*lines)

    def _memory(self) -> schema.Memory:
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
        from . import install as observe

        return observe.observer.losses.read(value) if value.numel() == 1 else None
    return value


def note(text: str, run: Path | None = None) -> None:
    """To the run's own list of our faults, where nothing better is left. Never raises."""
    with contextlib.suppress(Exception):
        folder = run or Path(os.environ["GPU_PANEL_RUN"])
        with (folder / "observe-errors.log").open("a") as file:
            file.write(f"{os.getpid()} {text}\n")


def cannot(run: Path, direct: bool, text: str) -> None:
    """Say that this process can't be observed; `direct`: it is a rank for certain, else nobody
    knows whether it is to be one."""
    note(text, run)
    if not direct:
        return
    with contextlib.suppress(OSError):
        append(events_path(run, identity()["rank"]), schema.Warning(text))


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
            "started": procs.start_ticks(pid), "device": tuple(device),
            "world_size": who["world_size"],
            "attempt": _int(os.environ.get("GPU_PANEL_ATTEMPT"), 1)}


def error_fields(err: BaseException) -> dict[str, Any]:
    fields = {"type": type(err).__name__, "message": str(err) or type(err).__name__,
              "traceback": "".join(traceback.format_exception(type(err), err, err.__traceback__))}
    with contextlib.suppress(Exception):
        fields |= memory.of_error(err)
    return fields


def _int(text: str | None, default: Any) -> Any:
    try:
        return int(text)
    except (TypeError, ValueError):
        return default

