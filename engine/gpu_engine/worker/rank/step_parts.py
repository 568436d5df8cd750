"""Where the time of a rank's steps goes: waiting for data, forward, backward and so on.

The thread that trains notes the moment at which something begins or ends, which takes a fraction of
a microsecond. The thread that writes works out what the time between two such marks was spent on.
What can't be seen is unknown, not 0.

If the process uses CUDA, each mark has an event on the current stream too, and the seconds are the
device's between two of them. The events are asked whether they are over, never waited for.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...events import schema

_clock = time.perf_counter
_EVERY, _SELDOM, _GROWTH = 1.0, 10.0, 60
"""Seconds between two events: 1 in the first minute, then a sixtieth of the time so far, up to
10."""
_MOST = 3 * 20_000
"""Entries of the marks that are kept while the thread that writes hangs; more are lost."""
_POOL = 4096
"""CUDA events in use at a time, each made by torch when it is first recorded. With fewer, marks are
lost: steps of 2 ms have 3,000 a second, which are looked at five times a second."""

READY, STEP = "ready", "step"
"""The last gradient of a backward pass is there; an optimizer step is complete."""
_PART_OF = {"data": "data", "copy": "copy", "forward": "forward", "backward": "backward",
            READY: READY, "wait": "wait", "optimizer": "optimizer", "checkpoint": "save",
            "eval": "eval"}
"""The part that a phase of the engine's loop belongs to. Others belong to the rest."""
_ASIDE = ("save", "eval")
"""Parts that do not count in the time of a single step."""
_SURE = 4
"""As many passes must end with the same gradient."""
_STALL, _AT_LEAST = 5.0, 0.02
"""A step that takes so many times as long as most, and so many seconds longer, stalls."""
_WAITED = 0.5
"""Most of the process's time between two marks that the GPU needs between them, if the process has
waited there for all that came before."""


class StepParts:
    """Sums up the parts of the steps of the engine's own loop. Each mark begins a phase."""

    loads = True
    """Whether it is seen how long training waits for data."""
    free: tuple[str, ...] = ("forward", STEP)
    """What begins with these marks is the task's own or the script's: nothing else waits there."""

    def __init__(self, known: tuple[str, ...] = ("data", "copy", "forward", "backward",
                                                 "optimizer", "save", "eval")) -> None:
        """`known`: the parts that are 0 and not unknown if there were none of them."""
        self.thread = threading.main_thread().ident
        """The thread that trains."""
        self.workers: int | None = None
        """The workers of the loader that training reads from, if known."""
        self.last = ""
        """The mark noted last."""
        self._marks: deque[Any] = deque()
        """Kind, time, and CUDA event with what `_DeviceClock.record` says, of each mark in turn: on
        a processor, no object is made for a mark."""
        self._known = set(known)
        self._kind = ""
        """The mark before the one that is being added up."""
        self._at: float | None = None
        self._event: Any = None
        self._device: _DeviceClock | None = None
        self._reached = True
        """Whether the GPU was at the mark before last when the last was made."""
        self._behind = self._waits = False
        """Whether the GPU was behind in this step, and whether the process has waited for it."""
        self._aside = 0.0
        """Seconds since the last step that are not part of a step."""
        self._stepped: float | None = None
        self._began: float | None = None
        """When the first mark was added up."""
        self._due = 0.0
        self._garbage: _Garbage | None = None
        self._usual: float | None = None
        """Seconds of the step in the middle of the last event."""
        self._count = self._stalled_at = 0
        """Steps so far, and how many before the last one that has stalled."""
        self._now: dict[str, float] = {}
        """What the current step's time went into so far."""
        self._stalled_in: str | None = None
        self._clear()

    def _clear(self) -> None:
        self._exchanges: list[float] = []
        self._gaps: list[int] = []
        self._stalls, self._stalled = 0, 0.0
        self._sums: dict[str, float] = {}
        self._n = self._passes = self._ready = self._caught_up = self._waited = 0
        self._durations: list[float] = []

    def mark(self, kind: str) -> None:
        """Note that `kind` begins now."""
        self.last = kind
        if len(self._marks) < _MOST:
            device = self._device
            self._marks.extend((kind, _clock(),
                                None if device is None else device.record()))

    @property
    def latest(self) -> float | None:
        """When the last mark that is added up was made; None: there is none."""
        return self._at

    def event(self, step: int, *, over: bool = False) -> schema.StepTime | None:
        """What the steps since the last event were spent on, if it is time for one. `step`: steps
        so far; `over`: no more will come. Called in one thread at a time."""
        self._add_up()
        now = time.monotonic()
        if self._began is None:
            if self._at is None:
                return None
            self._began, self._due = now, now + _EVERY
            self._garbage = _Garbage()
        if not (over or now >= self._due) or not (self._n or self._sums.keys() - {"other"}):
            return None
        self._due = now + min(max(_EVERY, (now - self._began) / _GROWTH), _SELDOM)
        if self._device is None:
            self._device = _DeviceClock.of_process()
        sums, n, durations = self._sums, self._n, sorted(self._durations)
        median = round(durations[len(durations) // 2], 7) if durations else None
        seconds = sum(sums.values())
        # After the last gradient a pass only waits for other ranks. That holds for the sum if every
        # pass of these steps had such a mark.
        tail = sums.pop(READY, 0.0)
        exchange = None
        if self._ready and self._ready == self._passes:
            sums["wait"] = sums.get("wait", 0.0) + tail
            exchange = round(sorted(self._exchanges)[n // 10], 6) if n else None
        else:  # of some passes it is not seen what was waiting
            sums["backward"] = sums.get("backward", 0.0) + tail
            sums.pop("wait", None)
        told = {name: round(sums.get(name, 0.0), 5) for name in schema.PARTS
                if name in sums or name in self._known}
        on_device = self._event is not None
        event = schema.StepTime(
            step, n, round(seconds, 5), median=median, device=1 if on_device else None,
            workers=self.workers, caught_up=self._caught_up if on_device else None,
            waited=self._waited if on_device else None, exchange=exchange, **told, **self._odd())
        self._usual = median or self._usual
        self._clear()
        return event

    def _odd(self) -> dict[str, Any]:
        """The fields of an event about garbage and about steps that have stalled, where there were
        any."""
        told: dict[str, Any] = {}
        if self._garbage is not None and self._garbage.count:
            told = {"gc": round(self._garbage.seconds, 5), "gcs": self._garbage.count}
            self._garbage.clear()
        if self._stalls:
            every = max(set(self._gaps), key=self._gaps.count, default=0)
            told |= {"stalls": self._stalls, "stalled": round(self._stalled, 5),
                     "every": every if 2 * self._gaps.count(every) > len(self._gaps) else None,
                     "stalled_in": self._stalled_in}
        return told

    def _add_up(self) -> None:
        marks = self._marks
        if self._device is not None and self._device.capturing():
            return  # asking an event now would spoil the graph
        while marks:
            event, reached = marks[2] or (None, None)
            if event is not None and not event.query():
                break
            kind, at = marks.popleft(), marks.popleft()
            marks.popleft()
            before = self._at
            gap = self._gap(at, event)
            if self._device is not None:
                self._compare(reached, gap, None if before is None else at - before)
            if gap is None:
                self._begin_anew(kind)
            else:
                self._spend(kind, gap)
                if kind == STEP:
                    self._step(at)
            self._kind = kind

    def _gap(self, at: float, event: Any) -> float | None:
        """Seconds since the mark before; None if there is none, or the device's are not known."""
        (before, self._at), (first, self._event) = (self._at, at), (self._event, event)
        if before is None:
            return None
        if self._device is None or (event is None and first is None):
            return at - before
        seconds = self._device.seconds(first, event) if first is not None and event is not None \
            else None
        if first is not None:
            self._device.free.append(first)
        return seconds

    def _compare(self, reached: bool | None, gap: float | None, own: float | None) -> None:
        """Note which of the two is ahead, the process or the GPU, at a mark that ends `gap` seconds
        of the GPU and `own` seconds of the process. `reached`: as `_DeviceClock.record` says it;
        None if that is not known."""
        if self._kind in self.free and reached and not self._reached \
                and gap is not None and own is not None and gap < _WAITED * own:
            self._waits = True
        self._behind = self._behind or not reached
        self._reached = reached is not False

    def _step(self, at: float) -> None:
        self._n += 1
        self._caught_up += not self._behind
        self._waited += self._waits
        self._behind = self._waits = False
        self._count += 1
        self._exchanges.append(self._now.get(READY, 0.0))
        if self._stepped is not None and len(self._durations) < _MOST:
            took = max(at - self._stepped - self._aside, 0.0)
            self._durations.append(took)
            if self._usual is not None and took >= max(_STALL * self._usual,
                                                       self._usual + _AT_LEAST):
                self._stall(took - self._usual)
        self._stepped, self._aside = at, 0.0
        self._now.clear()

    def _stall(self, longer: float) -> None:
        if self._stalled_at:
            self._gaps.append(self._count - self._stalled_at)
        self._stalled_at = self._count
        self._stalls += 1
        self._stalled += longer
        own = {part: gap for part, gap in self._now.items() if part not in _ASIDE}
        part = max(own, key=lambda name: own[name], default="other")
        self._stalled_in = "wait" if part == READY else part

    def _begin_anew(self, kind: str) -> None:
        """Go on from a mark before which nothing is known."""

    def _spend(self, kind: str, gap: float) -> None:
        """Add `gap` seconds, which end with a mark of this `kind`, to the part they belong to."""
        before = self._kind
        self._add("backward" if kind == READY else _PART_OF.get(before, "other"), gap)
        if before == "backward":
            self._passes += 1
        if kind == READY and before != READY:
            self._ready += 1

    def _add(self, part: str, gap: float) -> None:
        self._sums[part] = self._sums.get(part, 0.0) + gap
        self._now[part] = self._now.get(part, 0.0) + gap
        if part in _ASIDE:
            self._aside += gap


class _Garbage:
    """Counts full garbage collections, in whichever thread: all others stand still meanwhile."""

    def __init__(self) -> None:
        self._began = 0.0
        self.clear()
        gc.callbacks.append(self._called)

    def clear(self) -> None:
        self.seconds, self.count = 0.0, 0

    def _called(self, phase: str, info: Mapping[str, int]) -> None:
        if info["generation"] < 2:
            return
        if phase == "start":
            self._began = _clock()
        else:
            self.seconds += _clock() - self._began
            self.count += 1


class _DeviceClock:
    """A pool of CUDA events."""

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self.free: deque[Any] = deque(cuda.Event(enable_timing=True) for _ in range(_POOL))
        """Those that are not in use."""
        self._last: Any = None
        """The one recorded last."""

    @classmethod
    def of_process(cls) -> _DeviceClock | None:
        """A clock, if this process uses CUDA by now."""
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        return cls(cuda) if cuda is not None and cuda.is_initialized() else None

    def capturing(self) -> bool:
        """Whether this thread captures a graph on its stream."""
        return self._cuda.is_current_stream_capturing()

    def record(self) -> tuple[Any, bool] | None:
        """An event at this place in the current stream, and whether the GPU has come to the one
        before by now; None if there is none to be had, or the stream is being captured into a
        graph."""
        with contextlib.suppress(Exception):  # never the training's problem
            if self.free and not self.capturing():
                event = self.free.pop()  # the one used last: no more are made than are needed
                reached = self._last is not None and self._last.query()
                event.record()
                self._last = event
                return event, reached
        return None

    def seconds(self, first: Any, last: Any) -> float | None:
        """The device's time between two events that are over; None if they don't compare, as
        those of two devices."""
        with contextlib.suppress(Exception):
            return max(first.elapsed_time(last), 0.0) / 1000
        return None


class LastGradient:
    """Calls a function when the last gradient of a backward pass is there, in the thread of the
    pass. What DistributedDataParallel's pass takes after that, it waits for the other ranks, or for
    the averages to be exchanged.

    Which gradient is the last is learned in the first passes; only its parameter keeps a hook then.
    The order is that of the model's graph: if it changes from pass to pass, nothing is told.
    """

    def __init__(self, parameters: Iterable[Any], tell: Callable[[], None]) -> None:
        """`parameters`: those of the model; of those that need no gradient, nothing is expected."""
        self._tell = tell
        self._handles: dict[int, Any] = {}
        self._seen: list[int] = []
        self._lasts: list[int] = []
        for number, parameter in enumerate(p for p in parameters if p.requires_grad):
            self._handles[number] = parameter.register_post_accumulate_grad_hook(
                lambda _, number=number: self._came(number))

    def _came(self, number: int) -> None:
        if len(self._handles) > 1:
            if number in self._seen:
                self._passed()
            self._seen.append(number)
        if self._handles:
            self._tell()

    def _passed(self) -> None:
        """Another pass has begun."""
        self._lasts.append(self._seen[-1])
        self._seen = []
        if len(set(self._lasts)) > 1:
            self._drop_all_but(None)
        elif len(self._lasts) == _SURE:
            self._drop_all_but(self._lasts[0])

    def _drop_all_but(self, kept: int | None) -> None:
        for number in [n for n in self._handles if n != kept]:
            self._handles.pop(number).remove()
