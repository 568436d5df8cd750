"""Whether a rank gets on while it makes no step, by what the kernel counts of its process and those
below it. Standard library only.

A thread that is blocked, in a lock, in gloo or for a key of the store, is never given a core. One
that was given one again and again has got something, or looks for it: it doesn't stand still.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

from ...common import procs

_BUSY = 0.05
"""The share of one core from which on a rank works, whether it gets it or waits for its turn. One
that waits in gloo, or for a worker of its loader that does not answer, uses less than a hundredth.
"""
_BYTES = 64 << 10
"""Bytes moved in a second from which on it works: to a slow disk or over a slow line."""
_TURNS, _TURNS_BELOW = 3, 7
"""Turns on a core between two looks of which the thread that trains gets on, and a process that it
waits for: a loader's worker without work looks for some every five seconds."""
_BYTES_ACKED = slice(120, 136)
"""Where Linux has the bytes that were acknowledged and received, of a connection's TCP_INFO."""
_TICKS = os.sysconf("SC_CLK_TCK")


class Look(NamedTuple):
    """What is counted at one moment."""

    at: float
    """Monotonic seconds."""
    seconds: float
    """For which the process and those below it were on a core, or the thread that trains and they
    waited for one."""
    moved: int
    """Bytes that they have read and written, and that TCP connections have."""
    turns: dict[int, int]
    """How often the thread that trains was given a core, by its number; or each process below."""
    below: bool
    """Whether those are processes below."""
    said: object
    """Changes when the rank has got a batch."""


def look(thread: int | None, said: object, *, below: bool) -> Look:
    """Look at this process. `thread`: which trains, as `threading.get_ident` says it; `below`:
    whether it waits for processes below this one."""
    own = next((t.native_id for t in threading.enumerate() if t.ident == thread), None)
    seconds, moved = time.process_time(), procs.moved("self", "rchar", "wchar") + _over_tcp()
    turns: dict[int, int] = {}
    if own is not None:
        waited, turns[own] = procs.turns(f"self/task/{own}")
        seconds += waited
    processes: dict[int, int] = {}
    for pid in _processes_below(os.getpid()):
        waited, processes[pid] = procs.turns(pid)
        seconds += waited + (procs.cpu_ticks(pid) or 0) / _TICKS
        moved += procs.moved(pid, "rchar", "wchar")
    return Look(time.monotonic(), seconds, moved, processes if below else turns, below, said)


def gets_on(before: Look, now: Look) -> bool:
    """Whether the rank has got on between two looks."""
    passed = max(now.at - before.at, 1e-3)
    return now.said != before.said \
        or now.seconds - before.seconds > _BUSY * passed \
        or now.moved - before.moved > _BYTES * passed \
        or any(turns - before.turns.get(one, turns) >= (_TURNS_BELOW if now.below else _TURNS)
               for one, turns in now.turns.items())


def _processes_below(pid: int, depth: int = 3) -> Iterator[int]:
    for child in procs.children(pid):
        yield child
        if depth:
            yield from _processes_below(child, depth - 1)


def _over_tcp() -> int:
    """Bytes that this process's TCP connections have had acknowledged and have received, which
    /proc/self/io leaves out."""
    total = 0
    for one in own_sockets():
        with contextlib.suppress(OSError):  # no TCP
            info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED.stop)
            acked = info[_BYTES_ACKED]
            total += int.from_bytes(acked[:8], "little") + int.from_bytes(acked[8:], "little")
    return total


def own_sockets() -> Iterator[socket.socket]:
    """The sockets that this process has open, each until the next is asked for. Whoever has opened
    one may close it at any time: then its calls raise OSError."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names alone
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            one = socket.socket(fileno=int(name))
        except OSError:  # it was closed meanwhile
            continue
        try:
            yield one
        finally:
            one.detach()  # else it would be closed here
