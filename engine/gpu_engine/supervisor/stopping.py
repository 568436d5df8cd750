"""Asking the ranks of one attempt to stop, whatever stands between them and us.

A rank below a launcher, a shell or any other wrapper is asked itself: many a wrapper dies of the
signal without passing it on, torchrun signals whole groups, and a rank that is an orphan has
nobody to save for. Which processes are ranks stands in their events. Shells and `make` are held
meanwhile, as they would go on to their next line when their rank ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpu_engine.common import procs
from gpu_engine.supervisor import children as ch
from gpu_engine.supervisor.children import Child
from gpu_engine.supervisor.rank_state import RankState

SAVE_PATIENCE = 30.0
"""Seconds in which a checkpoint must grow to count as being written: a slow disk may swallow
the last of it for as long."""
_WRITE_PATIENCE = 5.0
_WRITES = 1 << 20
"""Bytes a second to disk that make a script look as if it saved."""
_WAIT = 3.0
"""Seconds that a launcher gets to notice by itself that its ranks have ended."""
_GO_ON = frozenset({"bash", "sh", "zsh", "dash", "ksh", "busybox", "fish", "make", "gmake"})
"""Programs that begin with the next line when one has ended."""

Known = tuple[int, "int | None"]
"""Pid and start ticks."""


@dataclass(slots=True)
class _Below:
    """The ranks below one process that we started."""

    ranks: set[Known] = field(default_factory=set)
    held: set[Known] = field(default_factory=set)
    gone: float | None = None
    """Monotonic seconds when all that were asked had ended."""
    told: bool = False
    """Whether the process itself was asked to end."""


@dataclass(slots=True)
class Stopping:
    """A stop under way."""

    asked: set[Known] = field(default_factory=set)
    _below: dict[int, _Below] = field(default_factory=dict)
    _bytes: int = 0
    _looked: float = 0.0
    _wrote: float = 0.0

    def look(self, children: Sequence[Child], events: Mapping[int, RankState]) -> None:
        """Ask whoever was not asked yet, and end wrappers whose ranks have ended."""
        try:
            table = ch.table()
        except OSError:  # no file can be opened: then at least what we started
            table = {}
        self._ask(children, events.values(), table)
        self._measure()
        for child in children:
            if child.running:
                self._end(child, self._below[child.pid])

    @property
    def going_on(self) -> bool:
        """Whether any rank that was asked still runs."""
        return any(procs.alive(*known) for known in self.asked)

    def ask_all(self) -> None:
        """Ask all that is left below us: nothing of it was ever seen, so any may be a rank."""
        for pid in ch.descendants(os.getpid()):
            self._send((pid, procs.start_ticks(pid)))

    @property
    def writing(self) -> bool:
        """Whether the ranks of a script write so much that they look as if they saved."""
        return bool(self._wrote) and time.monotonic() - self._wrote < _WRITE_PATIENCE

    def _measure(self) -> None:
        now = time.monotonic()
        if now - self._looked < 1.0:
            return
        total = sum(_written(pid) for pid, _ in self.asked)
        if self._looked and total - self._bytes >= _WRITES * (now - self._looked):
            self._wrote = now
        self._bytes, self._looked = total, now

    # --- asking --------------------------------------------------------------------------------

    def _ask(self, children: Sequence[Child], events: Collection[RankState],
             table: Mapping[int, tuple[int, bool]]) -> None:
        started = {c.pid for c in children}
        first = {c.pid for c in children if c.pid not in self._below}
        for pid in first:
            self._below[pid] = _Below()
        for seen in events:
            rank = seen.view
            if rank.pid is None or rank.ended or rank.pid in started:
                continue
            chain = _chain(rank.pid, started | {os.getpid()}, table)
            if not chain or not self._send((rank.pid, rank.started)):
                continue
            wrapper = self._below.get(chain[-1])  # none: it is an orphan that fell to us
            if wrapper is not None:
                wrapper.ranks.add((rank.pid, rank.started))
                self._hold(wrapper, chain[1:])
        for child in children:
            below = self._below[child.pid]
            trains = any(s.view.pid == child.pid and s.view.stepped for s in events)
            if child.running and not below.told and (
                    trains or (child.pid in first and not below.ranks)):
                below.told = True
                self.asked.add((child.pid, child.ticks))
                child.signal(signal.SIGTERM)

    def _send(self, known: Known) -> bool:
        """SIGTERM, once. Whether it was sent now."""
        if known in self.asked:
            return False
        with contextlib.suppress(PermissionError):
            if procs.send(*known, signal.SIGTERM):
                self.asked.add(known)
                return True
        return False

    @staticmethod
    def _hold(below: _Below, pids: Sequence[int]) -> None:
        for pid in pids:
            known = pid, procs.start_ticks(pid)
            if procs.program(pid) in _GO_ON and known not in below.held:
                with contextlib.suppress(PermissionError):
                    if procs.send(*known, signal.SIGSTOP):
                        below.held.add(known)

    def _end(self, child: Child, below: _Below) -> None:
        if not below.ranks or (below.gone is None and any(
                procs.alive(*known) for known in below.ranks)):
            return
        below.gone = below.gone or time.monotonic()
        for known in below.held:
            for number in (signal.SIGTERM, signal.SIGCONT):
                with contextlib.suppress(PermissionError):
                    procs.send(*known, number)
        below.held.clear()
        if child.role == "rank" and not below.told and time.monotonic() - below.gone > _WAIT:
            below.told = True
            child.signal(signal.SIGTERM)


def saving(events: Iterable[RankState]) -> list[RankState]:
    """The ranks that write a checkpoint and get on with it, those that tell how far they are
    first: the others wait for them."""
    now = time.monotonic()
    found = [s for s in events if s.still_saving(now, SAVE_PATIENCE)]
    return sorted(found, key=lambda s: s.view.written is None)


def _chain(pid: int, roots: set[int], table: Mapping[int, tuple[int, bool]]) -> list[int]:
    """From `pid` up to the first of `roots`; empty where it is below none of them."""
    found: list[int] = []
    while pid in table and pid not in found:
        found.append(pid)
        if pid in roots:
            return found
        pid = table[pid][0]
    return []


def _written(pid: int) -> int:
    """Bytes that a process has written to disks (proc(5), io)."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/io").read_text().splitlines():
            if line.startswith("write_bytes:"):
                return int(line.split()[1])
    return 0
