"""Telling the ranks of one attempt to stop, also those below a wrapper.

A rank below a launcher, a shell or another wrapper gets the signal itself: many wrappers die of it
without passing it on, torchrun signals whole process groups, and an orphaned rank would not save.
The ranks' events say which processes they are. Shells and `make` are suspended meanwhile, as they
would go on to their next command when a rank ends.

The ranks of a task get SIGTERM. A person's own command gets what Ctrl-C in a terminal sends:
SIGINT. Torchrun's ranks get it from torchrun, which then waits for them: it would end the others
once one has ended by itself. If no rank is known, every Python of the command gets it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpu_engine.common import procs
from gpu_engine.plan.own_command import is_python
from gpu_engine.supervisor.children import Child, process_table
from gpu_engine.supervisor.ranks import RankState

SAVE_PATIENCE = 30.0
"""Seconds for which a checkpoint that does not grow still counts as being written: a slow disk may
take that long for its last part."""
_WRITE_PATIENCE = 5.0
"""Seconds for which a script that has written much counts as saving."""
_WRITES = 1 << 20
"""Bytes per second to disk from which a script counts as saving."""
_WAIT = 3.0
"""Seconds that a launcher gets to notice by itself that its ranks have ended."""
_OURS = (b"gpu-engine", b"gpu-panel", b"gpu_engine", b"gpu_panel")
"""Words of the commands whose stop needs no explanation."""
_GO_ON = frozenset({"bash", "sh", "zsh", "dash", "ksh", "busybox", "fish", "make", "gmake"})
"""Programs that start their next command when one has ended."""

Known = tuple[int, "int | None"]
"""Pid and start ticks."""


@dataclass(slots=True)
class _Below:
    """The ranks below one process that we started."""

    ranks: set[Known] = field(default_factory=set)
    held: set[Known] = field(default_factory=set)
    gone: float | None = None
    """When all signalled ranks had ended, monotonic seconds."""
    told: bool = False
    """Whether the process itself was signalled."""


@dataclass(slots=True)
class Stopping:
    """The state of a stop that was requested."""

    number: signal.Signals = signal.SIGTERM
    """What is sent."""
    signalled: set[Known] = field(default_factory=set)
    _below: dict[int, _Below] = field(default_factory=dict)
    _bytes: int = 0
    _looked: float = 0.0
    _wrote: float = 0.0

    def advance(self, children: Sequence[Child], events: Mapping[int, RankState]) -> None:
        """Signal the ranks that were not signalled yet, and end wrappers whose ranks have ended."""
        # Read only where there is somebody to be signalled: it takes from the cores on which ranks
        # save and end, ten times a second.
        self._signal(children, events.values(), functools.cache(_table))
        self._measure()
        for child in children:
            if child.running:
                self._end(child, self._below[child.pid])

    def press_on(self) -> bool:
        """Send SIGTERM to all that got another signal before. Returns whether there was one."""
        before, self.number = self.number, signal.SIGTERM
        if before == signal.SIGTERM:
            return False
        for known in self.signalled:
            with contextlib.suppress(PermissionError):
                procs.send(*known, self.number)
        return True

    @property
    def going_on(self) -> bool:
        """Whether any signalled process still runs."""
        return any(procs.alive(*known) for known in self.signalled)

    def signal_all(self, pids: Iterable[int]) -> None:
        """Signal all processes of the run. Used if no rank has written events, so that any process
        may be a rank."""
        for pid in pids:
            self._send((pid, procs.start_ticks(pid)))

    def writing(self) -> bool:
        """Whether the ranks of a script write so much that they seem to be saving. It is measured
        anew, as this decides whether they are killed: the last look may be a second old."""
        self._measure(least=0.2)
        return bool(self._wrote) and time.monotonic() - self._wrote < _WRITE_PATIENCE

    def _measure(self, least: float = 1.0) -> None:
        """Compare what was written since the last time, if that is `least` seconds ago."""
        now = time.monotonic()
        if now - self._looked < least:
            return
        total = sum(procs.moved(pid, "write_bytes") for pid, _ in self.signalled)
        if self._looked and total - self._bytes >= _WRITES * (now - self._looked):
            self._wrote = now
        self._bytes, self._looked = total, now

    # --- signals -------------------------------------------------------------------------------

    def _signal(self, children: Sequence[Child], events: Collection[RankState],
                table: Callable[[], Mapping[int, tuple[int, bool]]]) -> None:
        started = {c.pid for c in children}
        first = started - self._below.keys()
        self._below |= {pid: _Below() for pid in first}
        for seen in events:
            rank = seen.view
            if rank.pid is None or rank.ended or rank.pid in started:
                continue
            known = rank.pid, rank.started
            if known in self.signalled:
                continue
            chain = _chain(rank.pid, started | {os.getpid()}, table())
            if not chain or not self._send_rank(known, chain):
                continue
            wrapper = self._below.get(chain[-1])  # none: it is an orphan that fell to us
            if wrapper is not None:
                wrapper.ranks.add(known)
                self._hold(wrapper, chain[1:])
        for child in children:
            below = self._below[child.pid]
            own = [s.view for s in events if s.view.pid == child.pid]
            new = child.pid in first and not below.ranks
            if not child.running or below.told:
                continue
            # One that has ranks below it gets none: it ends as they do, and then says how.
            if new and not own and self.number == signal.SIGINT:
                self._interrupt(child, below)
            elif new or any(view.stepped for view in own):
                below.told = True
                self._send((child.pid, child.ticks))

    def _send_rank(self, known: Known, chain: Sequence[int]) -> bool:
        """Signal a rank, or the Python that has put it into a process group of its own, as torchrun
        does: that passes Ctrl-C on. `chain`: from the rank up to the process that we started."""
        with contextlib.suppress(ProcessLookupError, ValueError):
            above = chain[chain.index(os.getpgid(known[0])) + 1:]
            if self.number == signal.SIGINT and above and above[0] != os.getpid() \
                    and is_python(procs.program(above[0])):
                self._send((above[0], procs.start_ticks(above[0])))
                self.signalled.add(known)
                return True
        return self._send(known)

    def _interrupt(self, child: Child, below: _Below) -> None:
        """Signal what may be a rank: each Python with its process group, as a terminal does, and
        each other program that has started none. What reads from a pipe, as `tee` does, ends with
        what it reads."""
        # From the command downwards: a shell leads to what it runs, a Python may be the rank.
        under, queue, found = _under(), [child.pid], list[int]()
        while queue:
            pid = queue.pop()
            if is_python(procs.program(pid)):
                found += [pid, *_group_below(pid, under)]
            elif pid in under:
                self._hold(below, [pid])
                under = _under()  # what it ran may have ended before, and another begun
                queue += under.get(pid, ())
            elif not _reads_pipe(pid):
                found.append(pid)
        for pid in found or ([] if below.held else [child.pid]):
            known = pid, procs.start_ticks(pid)
            if self._send(known) and pid != child.pid:
                below.ranks.add(known)
        below.told = (child.pid, child.ticks) in self.signalled

    def _send(self, known: Known) -> bool:
        """Send the signal, once; SIGTERM to who ignores SIGINT, as what a shell has started in the
        background does. Returns whether it was sent now."""
        if known in self.signalled:
            return False
        deaf = self.number == signal.SIGINT and procs.ignores(known[0], signal.SIGINT)
        with contextlib.suppress(PermissionError):
            if procs.send(*known, signal.SIGTERM if deaf else self.number):
                self.signalled.add(known)
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
        # One that is held and runs nothing, as it was between two commands, is let go at once.
        if not (below.ranks or below.held) or (below.gone is None and any(
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


def _under() -> dict[int, list[int]]:
    """The pids below each process that has any."""
    found: dict[int, list[int]] = {}
    for pid, (parent, ended) in _table().items():
        if not ended:
            found.setdefault(parent, []).append(pid)
    return found


def _table() -> dict[int, tuple[int, bool]]:
    try:
        return process_table()
    except OSError:  # no file can be opened: signal at least our own children
        return {}


def sender(pid: int, root: Path = procs.PROC) -> str | None:
    """The sender of a signal in words: "by a signal from slurmstepd (pid 4711)". None if it is one
    of our own programs, or a script that uses them. Pid 0 stands for a process outside this pid
    namespace."""
    if pid == 0:
        return "by a process outside this container"
    if pid == os.getpid():
        return None
    try:
        name = (root / str(pid) / "comm").read_text().strip()
        words = procs.arguments(pid, root)
    except OSError:
        return f"by a signal, from a process that is gone (pid {pid})"
    if name == "systemd" or pid == 1:
        return f"by {name or 'pid 1'}: a logout or a shutdown"
    if any(ours in word for ours in _OURS for word in words) or name.startswith("python"):
        return None
    return f"by a signal from {name} (pid {pid})"


def saving(events: Iterable[RankState]) -> list[RankState]:
    """The ranks that are writing a checkpoint which still grows. Those that report their progress
    come first; the others wait for them."""
    now = time.monotonic()
    found = [s for s in events if s.still_saving(now, SAVE_PATIENCE)]
    return sorted(found, key=lambda s: s.view.written is None)


def _chain(pid: int, roots: set[int], table: Mapping[int, tuple[int, bool]]) -> list[int]:
    """The pids from `pid` up to the first of `roots`; empty if it is below none of them."""
    found: list[int] = []
    while pid in table and pid not in found:
        found.append(pid)
        if pid in roots:
            return found
        pid = table[pid][0]
    return []


def _group_below(pid: int, under: Mapping[int, Sequence[int]]) -> list[int]:
    """The pids below `pid` in its process group, without those that leave Ctrl-C to others."""
    found, queue = list[int](), list(under.get(pid, ()))
    while queue:
        at = queue.pop()
        queue += under.get(at, ())
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(at) == os.getpgid(pid) and not procs.ignores(at, signal.SIGINT):
                found.append(at)
    return found


def _reads_pipe(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/{pid}/fd/0").readlink()).startswith("pipe:")
    return False
