"""Where a rank is when it makes no step for a while: its stack, whether it works, and the
collective operations that it has begun last. While steps go on, nothing is asked or written.

The rank says it itself, in the thread that writes its events. So it needs neither ptrace nor a
signal, arrives from other machines like any event, and is still there when the run has ended. A
rank whose interpreter does not run, as it was suspended or native code keeps the GIL, says nothing;
its heartbeat stops as well then, by which it is known.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import functools
import linecache
import math
import os
import re
import signal
import sys
import sysconfig
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from ...common import procs
from ...events import schema
from . import torch_private
from .getting_on import Look, gets_on, look

if TYPE_CHECKING:
    from .step_parts import StepParts

AFTER = 10.0
"""Seconds without a step, or a change of phase, after which a rank says where it is."""
_EVERY = 5.0
"""Seconds between two polls."""
_AT_MOST_EVERY = 60.0
"""The time between two events doubles up to this many seconds, as in a long validation, unless the
rank begins or ends to work."""
_LOOKS = 4
"""Looks that are compared, the first with the last: a validation may take five seconds an example.
"""
_FRAMES, _RECENT = 24, 32
_WAITS = re.compile(r"([\w.\[\]]+\.wait|[\w.]*store\w*\.get|(?:\btime\.)?\bsleep)\(")
"""In a call of what is written in C: a wait of torch's, which has no line of its own."""
_DEBUGGERS = ("/bdb.py", "/pdb.py", "/debugpy/", "/pydevd")
_BELOW = ("torch/utils/data/", "/subprocess.py")
"""Where a thread waits for a process below."""
_OURS = f"{Path(__file__).parents[2]}/"
_LIBRARIES = tuple({f"{sysconfig.get_path(name)}/"
                    for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class StandingStill:
    """Watches the thread of this rank that trains, from another one."""

    def __init__(self) -> None:
        answer_when_forked()
        self._place: object = None
        self._since = time.time()
        self._said: schema.Stands | None = None
        self._check_at = self._report_at = self._pause = 0.0
        self._looks: deque[Look] = deque(maxlen=_LOOKS)
        """Since its step or phase last changed."""
        self._newest: list[schema.Collective] | None = None
        self._begun_at = 0.0
        """The operation begun last, and when another was seen to have begun, monotonic seconds."""

    def event(self, step: int, phase: str, parts: StepParts) -> schema.Stands | None:
        """What there is to say of a rank after `step` steps, in this phase; None while it makes
        steps, and where nothing is new. Call it once a second."""
        now = time.monotonic()
        if (step, phase) != self._place:
            self._place, self._since, self._said = (step, phase), time.time(), None
            self._check_at, self._report_at, self._pause = now + AFTER - _EVERY, now + AFTER, _EVERY
            self._looks.clear()
            self._newest, self._begun_at = None, 0.0
        if phase == "done" or now < self._check_at:
            return None
        self._check_at = now + _EVERY
        thread, stack = _trains(parts.thread)
        begun = None
        works = self._gets_on(thread, parts.latest, stack)
        if not works:  # asking torch takes a while
            begun = collectives()
            works = self._begins(begun, now)
        if now < self._report_at and (self._said is None or works == self._said.works):
            return None
        self._report_at = now + self._pause
        self._pause = min(2 * self._pause, _AT_MOST_EVERY)
        said, self._said = self._said, self._event(
            step, phase, stack, works, collectives() if begun is None else begun)
        same = said is not None and (said.works, said.stack, said.collectives, said.worker) == (
            works, self._said.stack, self._said.collectives, self._said.worker)
        return None if same else self._said

    def failed(self, step: int, phase: str, trace: TracebackType | None) -> schema.Stands | None:
        """The same of a rank that fails at `trace`; None if it is in no group of ranks."""
        frames = _frames(traceback.walk_tb(trace))[::-1]
        event = self._event(step, phase, frames, True, collectives())
        return event if event.collectives else None

    def _event(self, step: int, phase: str, stack: list[_Frame], works: bool,
               begun: dict[int, schema.Collective]) -> schema.Stands:
        stack = [f for f in stack if not f[0].startswith((_OURS, "<gpu-panel"))] or stack
        lines = tuple(line_of(*f) for f in stack[:_FRAMES])
        loads = any("torch/utils/data/" in line for line in lines)
        workers = procs.children(os.getpid()) if loads else ()
        return schema.Stands(step, phase, round(self._since, 3), works, own_line(stack),
                             lines, begun or None,
                             next(filter(None, map(_fetching, workers)), None), _waits_in(stack))

    def _gets_on(self, thread: int | None, batch: float | None, stack: list[_Frame]) -> bool:
        """Whether the rank has got on in the last looks."""
        below = any(part in file for file, *_ in stack[:_FRAMES] for part in _BELOW)
        if _waits_in(stack) == "init_process_group":  # which looks for the others every 10 ms
            thread = None
        self._looks.append(look(thread, batch, below=below))
        return gets_on(self._looks[0], self._looks[-1])

    def _begins(self, begun: dict[int, schema.Collective], now: float) -> bool:
        """Whether the rank goes on from operation to operation between ranks."""
        newest = [*begun.values()][-1:]
        if newest != self._newest:
            # The first time that torch is asked tells nothing.
            self._begun_at, self._newest = now if self._newest is not None else 0.0, newest
        return now - self._begun_at < _EVERY * (_LOOKS - 1) and bool(self._begun_at)


_Frame = tuple[str, int, str, str]
"""File, line and function; of the innermost, the source of the call that it is in."""


def _trains(thread: int | None) -> tuple[int | None, list[_Frame]]:
    """The thread that trains, or for which the main thread waits, and its stack, innermost first.
    `thread`: which was seen to train, as it may no longer be there."""
    running = sys._current_frames()
    if thread not in running:
        thread = threading.main_thread().ident
    for _ in running:  # each is joined once at most
        frame = running.get(thread or 0)
        joins = next((f for f in (frame, frame and frame.f_back)
                      if f is not None and f.f_code is _JOIN), None)
        joined: Any = joins and joins.f_locals.get("self")
        if joined is None or joined.ident not in running:
            break
        thread = joined.ident
    frame = running.get(thread or 0)
    return thread, _frames(traceback.walk_stack(frame) if frame else (), frame)


_JOIN = threading.Thread.join.__code__


def _waits_in(stack: list[_Frame]) -> str | None:
    """What a thread waits in that is known by its name: an operation between ranks that is not
    recorded, a key of the store, a sleep, a debugger."""
    if any(part in file for file, *_ in stack for part in _DEBUGGERS):
        return schema.DEBUGGER
    for file, _, function, _ in reversed(stack):
        if file.endswith("torch/distributed/distributed_c10d.py"):
            return function
    if not stack or stack[0][0].startswith((_OURS, *_LIBRARIES)):
        return None
    called = _WAITS.search(stack[0][3])
    return called and (schema.SLEEP if called[1].endswith("sleep") else called[1])


def _frames(walked: Iterable[tuple[FrameType, int]], innermost: FrameType | None = None
            ) -> list[_Frame]:
    """Of frames and the lines at which they are."""
    return [(frame.f_code.co_filename, line, frame.f_code.co_name,
             _call(frame) if frame is innermost else "") for frame, line in walked]


def _call(frame: FrameType) -> str:
    """The source of the call that a frame is in. Before Python 3.11, which knows no columns, it is
    the whole line, in which other calls may stand."""
    code, line = frame.f_code, linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    if not hasattr(code, "co_positions"):
        return line
    first, last, begin, end = next(islice(code.co_positions(), frame.f_lasti // 2, None))
    # Columns are bytes.
    return line.encode()[begin:end].decode(errors="replace") if first == last else line


def own_line(frames: Iterable[tuple[Any, ...]]) -> str | None:
    """The innermost line that is neither a library's nor ours. `frames`: innermost first."""
    return next((line_of(*f) for f in frames
                 if not f[0].startswith((_OURS, *_LIBRARIES, "<"))), None)


def line_of(file: str, line: int, function: str, _call: str = "") -> str:
    """ "folder/train.py:40 in main": a path from where packages are or the script runs, or its last
    three parts."""
    here, installed = f"{Path.cwd()}/", file.rpartition("-packages/")
    short = file[len(here):] if file.startswith(here) else "/".join(Path(file).parts[-3:])
    return f"{installed[2] if installed[1] else short}:{line} in {function}"


# --- a loader's workers ---------------------------------------------------------------------

_ASK = getattr(signal, "SIGRTMAX", 64) - 5
"""The signal at which a process that a rank has forked says where it is, which nobody else uses."""
_ANSWER = "gpu-panel-stacks"
_ANSWERS = 1.0
"""Seconds in which an answer comes: on a busy machine a process has to wait for its turn."""
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')


@functools.lru_cache(None)
def answer_when_forked() -> None:
    """Have each process that this one forks from now on, as a loader does for its workers, write
    its stacks into memory of its own when it is asked. The rank itself sees nothing of it."""
    if hasattr(os, "memfd_create"):
        os.register_at_fork(after_in_child=_will_answer)


def _will_answer() -> None:
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        memory = os.memfd_create(_ANSWER)
        try:  # the number that the next file gets is the script's
            faulthandler.register(_ASK, file=fcntl.fcntl(memory, fcntl.F_DUPFD_CLOEXEC, 500))
        finally:
            os.close(memory)


def _fetching(pid: int) -> str | None:
    """The line at which a loader's worker is fetching examples; None: it is none, or does not."""
    try:
        answers = [fd for fd in Path(f"/proc/{pid}/fd").iterdir()
                   if str(fd.readlink()).startswith(f"/memfd:{_ANSWER}")]
        if not answers or not procs.catches(pid, _ASK):
            return None
        with max(answers, key=lambda fd: int(fd.name)).open() as file:
            before = file.seek(0, os.SEEK_END)
            os.kill(pid, _ASK)
            text, deadline = "", time.monotonic() + _ANSWERS
            while time.monotonic() < deadline:
                time.sleep(0.1)
                file.seek(before)
                last, text = text, file.read()
                if text and text == last:  # it is written in pieces
                    break
            main = text.rpartition("(most recent call first):")[2]
    except (OSError, ValueError):
        return None
    frames = [(file, int(line), name) for file, line, name in _FRAME.findall(main)]
    fetches = next((i for i, f in enumerate(frames) if f[0].endswith("data/_utils/fetch.py")), 0)
    inner = frames[:fetches]
    return own_line(inner) or (line_of(*inner[0]) if inner else None)


# --- torch's flight recorder ------------------------------------------------------------------

def collectives() -> dict[int, schema.Collective]:
    """The last collective operations that this process has begun, in the order of their beginning.
    Empty where torch records none, as before 2.5, or before 2.8 under gloo."""
    found: list[schema.Collective] = []
    for dump in torch_private.recorded_collectives():
        found += map(_collective, dump.get("entries", ())[-_RECENT:])
    found.sort(key=lambda one: one.began)
    return dict(enumerate(found[-_RECENT:]))


def exchanged(after: int) -> list[int]:
    """How many numbers each collective operation of this rank had, as far as torch has recorded
    them, but for the first `after` ones."""
    return [sum(map(math.prod, entry.get("input_sizes") or ()))
            for dump in torch_private.recorded_collectives() for entry in dump.get("entries", ())
            if not entry.get("is_p2p") and int(entry.get("collective_seq_id") or 0) > after]


def _collective(entry: dict[str, Any]) -> schema.Collective:
    """One entry of the recorder. gloo's states are "scheduled" for ever, so `retired` tells whether
    it has ended; NCCL's are retired a moment after they are "completed"."""
    point = bool(entry.get("is_p2p"))
    sizes, types = entry.get("input_sizes") or (), entry.get("input_dtypes") or ()
    size = ", ".join(f"{'×'.join(map(str, shape)) or 1} {str(kind).lower()}"
                     for shape, kind in zip(sizes, types))
    return schema.Collective(
        str((entry.get("process_group") or ("?",))[0]),
        int(entry.get("p2p_seq_id" if point else "collective_seq_id") or 0),
        str(entry.get("profiling_name", "?")).partition(":")[2], size[:100],
        round(int(entry.get("time_created_ns") or 0) / 1e9, 3),
        bool(entry.get("retired")) or entry.get("state") == "completed", point)
