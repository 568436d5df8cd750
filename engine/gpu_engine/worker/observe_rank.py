"""Which rank an observed process is, and its record: claimed, written, ended, given up by forks.

Many processes of a command are none: DataLoader workers, launch agents, helpers. One becomes a
rank when it first calls `backward()` or steps an optimizer, and holds a lock on the rank's events
file from then on, so that no two write as one. A process that the supervisor itself started as a
rank shows signs of life before that, and gives way when another claims its rank.
"""

from __future__ import annotations

import _thread
import contextlib
import fcntl
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from .. import events, procs
from . import memory, observe_loss, recorder

_OTHERS = 8  # optimizers beside the first whose losses are kept


class Watcher(recorder.Recorder):
    """A recorder that nobody notices: its thread is none of Python's `threading`, it stops for
    the moment of a fork, and it says nothing on the script's stderr."""

    def __init__(self, path: Path, run: Path) -> None:
        """Raises OSError."""
        super().__init__(path)
        self.device: Any = None
        """Index of the GPU whose memory is this rank's; None: all that are used."""
        self._run_folder = run
        self._pid = os.getpid()
        self._gone = _thread.allocate_lock()
        self.started = False
        """Whether the thread runs."""
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._claimed = False
        self._given_up = False

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
        self._queue.clear()
        with contextlib.suppress(OSError):
            os.close(self._file)

    # --- the thread ----------------------------------------------------------------------------

    def begin(self) -> None:
        self._done.clear()
        self._gone.acquire()
        self.started = True
        _thread.start_new_thread(self._run, ())

    def pause(self) -> None:
        """End the thread for now, within a moment."""
        if self.started:
            self._done.set()
            if self._gone.acquire(timeout=2.0):
                self._gone.release()
                self.started = False

    def close(self) -> None:
        self.pause()
        with self._lock:
            self._flush()

    def _run(self) -> None:
        try:
            super()._run()
        finally:
            self._gone.release()

    def _tick(self) -> None:
        if os.getpid() != self._pid or self._given_up:
            return
        if self._taken():
            self._given_up = True
            return
        super()._tick()

    def write(self, kind: str, **fields: Any) -> None:
        if not self._given_up:
            super().write(kind, **fields)

    def _complain(self, text: str) -> None:
        note(text, self._run_folder)

    # --- what is observed ----------------------------------------------------------------------

    def took(self, *step: Any) -> None:
        """An optimizer's step: the optimizer's number and name, the step's, the loss, the learning
        rate, the gradients' norm. Loss and norm: a number, one that comes later, or None."""
        self._queue.append(("step", *step))

    def forget(self, value: Any) -> None:
        """Nobody wants this number; what is on its way still has to arrive."""
        if isinstance(value, observe_loss.Later):
            self._queue.append(("drop", value))

    def metric(self, values: dict[str, Any]) -> None:
        self._queue.append(("metric", self.step_now,
                            {k: read(v) for k, v in values.items()}))

    def _flush(self) -> None:
        steps: dict[int, list[tuple]] = {}
        lines: list[bytes] = []

        def end_steps() -> None:
            if steps:
                lines.append(self._observed(steps))
                steps.clear()

        while self._queue:
            item = self._queue[0]
            if item[0] == "step" and type(item[4]) is float and item[6] is None:
                steps.setdefault(item[1], []).append((*item[2:6], None))
                self._queue.popleft()
                continue
            if not _all_here(item):
                break
            self._queue.popleft()
            if item[0] == "step":
                loss, norm = observe_loss.taken(item[4]), observe_loss.taken(item[6])
                steps.setdefault(item[1], []).append((*item[2:4], loss, item[5], norm))
            elif item[0] == "metric":
                end_steps()  # in the order in which they happened
                values = {k: recorder._read(observe_loss.taken(v)) for k, v in item[2].items()}
                lines.append(events.encode("metric", {"step": item[1], **values}))
            else:
                item[1].take()
        end_steps()
        if lines and not self._given_up:
            self._out.write(*lines)

    def _observed(self, steps: dict[int, list[tuple]]) -> bytes:
        first = steps.pop(0, [])
        step, lr, norm = (first[-1][1], first[-1][3], first[-1][4]) if first \
            else (self.step_now, None, None)
        fields: dict[str, Any] = {"step": step, "n": len(first), "lr": lr,
                                  "skipped": self.skipped}
        fields |= _losses(first)
        if norm is not None:
            fields["grad_norm"] = recorder._short(norm)
        if steps:
            fields["others"] = {
                str(index): {"name": seen[-1][0], "step": seen[-1][1], "n": len(seen)}
                | _losses(seen) for index, seen in steps.items() if index <= _OTHERS}
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


def _all_here(item: tuple) -> bool:
    if item[0] == "step":
        return observe_loss.arrived(item[4]) and observe_loss.arrived(item[6])
    if item[0] == "metric":
        return all(map(observe_loss.arrived, item[2].values()))
    return item[1].arrived


def _losses(steps: list[tuple]) -> dict[str, Any]:
    return recorder.losses_of([s[2] for s in steps if s[2] is not None])


def _int(text: str | None, default: Any) -> Any:
    try:
        return int(text)
    except (TypeError, ValueError):
        return default

