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

import contextlib
import inspect
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...common import files
from ...events import schema
from ...events.paths import MOST_TRACED, TRACE_REQUEST, TRACES
from . import memory, torch_private

_EVERY = 1.0


@contextlib.contextmanager
def _without_words() -> Iterator[None]:
    """Have kineto write nothing into the script's log. It reads what is set here once, when the
    first profile of the process starts; the script and what it starts later don't see it."""
    name = "KINETO_LOG_LEVEL"
    if name in os.environ:
        yield
        return
    os.environ[name] = "99"
    try:
        yield
    finally:
        del os.environ[name]


class Tracer:
    """The traces of one rank."""

    def __init__(self, events: Path) -> None:
        """`events`: the path of the rank's events file."""
        self.wanted = False
        """Whether `stepped` is to be called after each step."""
        self._run, self._rank = events.parent.parent, events.stem
        self._due = 0.0
        self._asked: tuple[int, int, float] | None = None
        """Steps to trace, how many come before them, and until when somebody waits for it."""
        self._begun: tuple[int, int, float] | None = None
        """The request that was obeyed last."""
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
        if self._profile is None:
            self._asked = self._request()
            self.wanted = self._asked not in (None, self._begun)
        return None

    def _request(self) -> tuple[int, int, float] | None:
        """What this rank is asked for now."""
        with contextlib.suppress(OSError, TypeError, KeyError, ValueError):
            run = self._run.lstat()
            if run.st_uid == os.geteuid() and not run.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                asked: Any = files.json_inside(self._run, TRACE_REQUEST)
                steps, first, until = int(asked["steps"]), int(asked["from"]), float(asked["until"])
                mine = asked["ranks"] is None or int(self._rank) in asked["ranks"]
                if mine and time.time() < until and 0 < steps <= MOST_TRACED:
                    return steps, first, until
        return None

    def _written(self, over: Any) -> schema.Trace:
        steps = self._begun[0] if self._begun is not None else 0
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
            return schema.Trace(self._first, steps, problem=f"{type(err).__name__}: {err}")
        return schema.Trace(self._first, steps, f"{TRACES}/{name}")

    # --- in the thread that trains ------------------------------------------------------------

    def stepped(self, step: int) -> None:
        """Begin, go on with or end what is `wanted`. `step`: how many are done."""
        asked = self._asked
        if step == self._at or asked is None:
            return
        self._at = step
        over: Any = None
        try:
            if self._profile is not None:
                self._profile.step()
                self._left -= 1
                if not self._left:
                    self._profile.stop()
                    over = self._profile
            elif step >= asked[1]:
                self._begun = asked
                import torch

                if torch_private.is_profiled():
                    raise RuntimeError("it is being profiled already, by its own code")
                profiler = torch.profiler
                # Torch 2.11 warns, into the script's log, of keeping one cycle's events alone.
                more: dict[str, Any] = {"acc_events": True} if "acc_events" in \
                    inspect.signature(profiler.profile).parameters else {}
                # The first step warms up: starting up takes time that no step has otherwise.
                self._profile = profiler.profile(schedule=profiler.schedule(
                    wait=0, warmup=1, active=asked[0], repeat=1), **more)
                self._first, self._left = step + 2, 1 + asked[0]
                with _without_words():
                    self._profile.start()
        except Exception as err:  # noqa: BLE001  as where the script is being profiled already
            over = err
        if over is not None:
            self.wanted, self._profile, self._over = False, None, over
