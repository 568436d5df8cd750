"""Traces a few steps of this rank with torch's profiler when a person asks for it, while it trains.

The request is the file trace.json in the run folder, looked at once a second by the thread that
writes the events. The profiler then begins and ends in the thread that trains, between two steps,
as it sees that thread's operations only. A folder in which others can write is not obeyed.

kineto's own way to be asked, over a socket, would need variables in the environment of every
process, a torch of 2.8 or newer for a socket in a folder of one's own, and short paths; before
that its socket is one for all users of the machine. This way takes any torch from 2.4 on, and the
same number of steps on each rank.
"""

from __future__ import annotations

import inspect
import os
import stat
import time
from pathlib import Path
from typing import Any

from ...common import files
from ...events import schema
from ...events.paths import MOST_TRACED, TRACE_REQUEST, TRACES
from . import memory, torch_private

_EVERY = 1.0


class Tracer:
    """The traces of one rank."""

    def __init__(self, events: Path) -> None:
        """`events`: the path of the rank's events file."""
        self.wanted = False
        """Whether `stepped` is to be called after each step."""
        self._run, self._rank = events.parent.parent, events.stem
        self._seen: tuple[int, int] | None = None
        self._due = 0.0
        self._steps, self._from, self._until = 0, 0, 0.0
        self._profile: Any = None
        self._first = self._at = self._left = 0
        self._over: Any = None
        """A profile that is to be written, or the exception that came instead."""

    # --- in the thread that writes events ---------------------------------------------------------

    def tick(self) -> schema.Trace | None:
        """Look for a request, and write a trace that is complete. Returns what there is to say of
        it. For the thread that writes the events, without a lock: writing may take seconds."""
        now = time.monotonic()
        if now < self._due:
            return None
        self._due = now + _EVERY
        over, self._over = self._over, None
        if over is not None:
            return self._written(over)
        try:
            found = (self._run / TRACE_REQUEST).lstat()
        except OSError:
            self._withdraw()
            return None
        if (found.st_ino, found.st_mtime_ns) != self._seen:
            self._seen = found.st_ino, found.st_mtime_ns
            self._claim()
        elif time.time() > self._until:
            self._withdraw()
        return None

    def _withdraw(self) -> None:
        """Nobody waits for it any more. What has begun goes on."""
        if self.wanted and self._profile is None:
            self.wanted = False

    def _claim(self) -> None:
        run = self._run.lstat()
        if run.st_uid != os.geteuid() or run.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return
        asked: Any = files.json_inside(self._run, TRACE_REQUEST)
        try:
            steps, first, until = int(asked["steps"]), int(asked["from"]), float(asked["until"])
            mine = asked["ranks"] is None or int(self._rank) in asked["ranks"]
        except (TypeError, KeyError, ValueError):
            return
        if mine and time.time() < until and 0 < steps <= MOST_TRACED and self._profile is None:
            self._steps, self._from, self._until = steps, first, until
            self.wanted = True

    def _written(self, over: Any) -> schema.Trace:
        try:
            if isinstance(over, Exception):
                raise over
            name = f"{self._rank}-step-{self._first}.json.gz"
            folder = memory.traces_folder(self._run)
            temporary = folder / f".{os.getpid()}.{name}"
            over.export_chrome_trace(os.fspath(temporary))
            temporary.chmod(0o600)
            temporary.replace(folder / name)
        except Exception as err:  # noqa: BLE001  a trace that fails is told, and never ends training
            return schema.Trace(self._first, self._steps, problem=f"{type(err).__name__}: {err}")
        return schema.Trace(self._first, self._steps, f"{TRACES}/{name}")

    # --- in the thread that trains ------------------------------------------------------------

    def stepped(self, step: int) -> None:
        """Begin, go on with or end what is `wanted`. `step`: how many are done."""
        if step == self._at:
            return
        self._at = step
        try:
            if self._profile is not None:
                self._profile.step()
                self._left -= 1
                if not self._left:
                    self._profile.stop()
                    self._end(self._profile)
            elif step >= self._from:
                self._profile = self._recording()
                self._first, self._left = step + 2, 1 + self._steps
                self._profile.start()
        except Exception as err:  # noqa: BLE001  as where the script is being profiled already
            self._end(err)

    def _recording(self) -> Any:
        """What records the steps that are asked for."""
        import torch

        if torch_private.is_profiled():
            raise RuntimeError("it is being profiled already, by its own code")
        profiler = torch.profiler
        # The first step warms up: starting up takes time that no step has otherwise.
        plan = profiler.schedule(wait=0, warmup=1, active=self._steps, repeat=1)
        # Torch 2.11 warns, into the script's log, of keeping one cycle's events and not all.
        more: dict[str, Any] = {"acc_events": True} if "acc_events" in \
            inspect.signature(profiler.profile).parameters else {}
        return profiler.profile(schedule=plan, **more)

    def out_of_memory(self, err: BaseException, step: int) -> tuple[str, ...]:
        """Write what a GPU's memory held as `err` came after `step` steps, if that was recorded.
        Returns the lines that held most, in words."""
        return memory.out_of_memory(err, self._run, f"{self._rank}-oom-step-{step}")

    def _end(self, over: Any) -> None:
        self.wanted, self._profile, self._over = False, None, over
