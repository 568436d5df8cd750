"""The process that starts waiting runs when their turn comes: one a user and machine, begun by the
first run that waits and gone with the last.

It keeps nothing that is not on disk. So it may be killed at any time: the next `gpu-engine run
--queue`, `gpu-engine queue`, `gpu-engine runs` or panel starts another one (`ensure`), which finds
the same line.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from gpu_engine.common import only_look, paths, procs
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import locked, write_json
from gpu_engine.launching import logind
from gpu_engine.queue import order, starts
from gpu_engine.queue.devices import INTERVAL, Devices
from gpu_engine.queue.order import After, DeviceNow, Never, Request, Start, Turn, Wait
from gpu_engine.queue.places import Places
from gpu_engine.queue.starts import Starts
from gpu_engine.runs import trust, waiting
from gpu_engine.runs.folder import Run, each_run
from gpu_engine.runs.waiting import Board, Entry

_CHECKED = 30.0
"""Seconds between two readings of all entries, in case somebody has removed a run's folder."""
_LINGER = 1.0
"""Seconds without a waiting run before the waiter ends."""
_BOARD = 2.0
"""Seconds between two writes of the board while only the reasons change."""

log = logging.getLogger(__name__)


def ensure(folder: Path | None = None) -> bool:
    """Start the waiter of this machine if runs wait here and it does not run. Returns whether one
    was started. Costs next to nothing if nothing waits. Raises UserError if it can't be started.
    """
    folder = folder or paths.queue_folder()
    if only_look.on() or not waiting.any_here(folder) or running(folder):
        return False
    path = waiting.lock_path(folder, socket.gethostname()).with_suffix(".log")
    try:
        log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW,
                      0o600)
        logind.start(f"queue-{os.getpid()}", log, "gpu_engine.queue", str(folder))
    except OSError as err:
        raise UserError(f"what starts waiting runs can't be started: {err}") from None
    return True


def running(folder: Path) -> bool:
    """Whether the waiter of this machine runs."""
    return bool(locked(waiting.lock_path(folder, socket.gethostname())))


class Waiter:
    """Starts the runs that wait on this machine, until none is left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = folder.parent / "runs"
        self.host = socket.gethostname()
        self._entries: dict[str, Entry] = {}
        """Our runs in the line."""
        self._read: dict[str, Entry] | None = None
        """The line as it was read last; None: it was not read yet."""
        self._checked = 0.0
        self.starts = Starts(folder)
        self._places = Places(folder)
        self._devices = {False: Devices(cpu=False), True: Devices(cpu=True)}
        """By whether they are CPU slots."""
        self._board: dict[str, str] | None = None
        self._board_at = 0.0
        self._idle: float | None = None

    def run(self) -> None:
        """Start runs until none waits."""
        self._enqueue_started_here()
        while not self.done():
            self.turn()
            time.sleep(INTERVAL)
        self._forget_environs()
        self._places.close()
        for devices in self._devices.values():
            devices.close()

    def done(self) -> bool:
        """Whether nothing has waited or was being started for a moment."""
        if self._read is None or self._entries or self.starts.starting:
            self._idle = None
            return False
        now = time.monotonic()
        self._idle = self._idle or now
        return now - self._idle >= _LINGER

    def turn(self) -> None:
        """Look once, start what can start, and write the board."""
        self.starts.poll()
        self._read_entries()
        line = self._in_order()
        devices = self._read_devices(line)
        decisions = order.decide(line, devices, now=time.time(), monotonic=time.monotonic(),
                                 choose=self._choose)
        for decision in decisions:
            if isinstance(decision, Never):
                self.starts.give_up(decision.id, decision.reason)
            elif isinstance(decision, Start) and len(self.starts.starting) < starts.MOST:
                self.starts.begin(decision.id, self._entries[decision.id], decision.devices)
        self._places.watch([d for d in decisions if isinstance(d, Turn)])
        self._write_board({d.id: f"waits {d.reason}" for d in decisions if isinstance(d, Wait)})

    # --- the line ------------------------------------------------------------------------------

    def _enqueue_started_here(self) -> None:
        """Put runs into the line that were started from here, say they wait and are not in it:
        whoever submitted them was killed in between."""
        listed = set(waiting.ids(self.folder))
        for run in each_run():
            if run.id not in listed and (run.path / waiting.FILE).exists() \
                    and trust.started_here(run.path) and waiting.read(run.path) is not None:
                with contextlib.suppress(OSError):
                    waiting.enter(run.path)

    def _read_entries(self) -> None:
        """Take in the entries that have changed."""
        names = waiting.ids(self.folder)  # first: whoever is in it by then is in the line, too
        line, now = waiting.line(self.folder), time.monotonic()
        if line is self._read and now - self._checked < _CHECKED:
            return
        self._read, self._checked = line, now
        entries: dict[str, Entry] = {}
        for name in dict.fromkeys((*names, *line)):
            run, entry = Run(self.runs / name), line.get(name)
            there = (run.path / waiting.FILE).exists()
            if there and entry is not None and entry is self._entries.get(name):
                entries[name] = entry
            elif not there or entry is None or run.state().state != "queued" \
                    or trust.why_not_ours(run.path):
                if name not in self.starts.starting:
                    with contextlib.suppress(OSError):
                        waiting.leave(run.path)
            elif entry.host == self.host:
                entries[name] = entry
        if entries != self._entries:
            self._entries = entries
            self.starts.forget(entries)
        self._forget_environs()

    def _forget_environs(self) -> None:
        """Delete the environments that no run needs, on whichever machine it waits. A run that is
        on its way in writes its own under the same lock."""
        with contextlib.suppress(OSError), waiting.locked(self.folder):
            needed = {e.environ for e in waiting.line(self.folder).values()}
            for path in self.folder.glob("environ-*.json"):
                if path.name not in needed:
                    path.unlink()

    def _in_order(self) -> list[Request]:
        """Our runs in their order, without those that are being started or have to pause, and the
        other users' that come before them."""
        after = {e.after: self._state_of(e.after) for e in self._entries.values() if e.after}
        ours = [self._request(name, entry, after) for name, entry in self._entries.items()]
        ours.sort(key=lambda r: waiting.place(r.id, self._entries[r.id]))
        keys = {device: key for cpu in {e.cpu for e in self._entries.values()}
                for device, key in self._devices[cpu].keys().items()}
        # Also while they pause or start: nobody comes between a start and its lease.
        now, pausing = time.time(), self.starts.pausing()
        self._places.hold([(r.id, r.wants) for r in ours if order.early(r, now) is None], keys)
        return self._places.among(
            [r for r in ours if r.id not in self.starts.starting and r.id not in pausing],
            {key: device for device, key in keys.items()})

    def _request(self, name: str, entry: Entry, after: Mapping[str, str | None]) -> Request:
        ids = self._devices[entry.cpu].id_of
        wants = replace(entry, ids=tuple(map(ids, entry.ids)),
                        within=tuple(map(ids, entry.within))) if entry.ids or entry.within \
            else entry
        first = After(entry.after, after[entry.after]) if entry.after else None
        return Request(name, wants, entry.begin, first)

    def _state_of(self, name: str) -> str | None:
        """The state of a run that another waits for; None if it is not there."""
        if name in self._entries or name in self.starts.starting:
            return "queued"
        run = Run(self.runs / name)
        return run.state().state if run.path.is_dir() else None

    # --- the devices ---------------------------------------------------------------------------

    def _read_devices(self, line: list[Request]) -> dict[str, DeviceNow]:
        starting = {device: name for name, s in self.starts.starting.items()
                    for device in s.devices}
        found: dict[str, DeviceNow] = {}
        now = time.time()
        shared = any(r.wants.share for r in line if r.owner is None)
        for cpu, devices in self._devices.items():
            wants = [r.wants for r in line if r.wants.cpu == cpu and order.early(r, now) is None]
            if wants:
                any_will_do = not all(w.ids for w in wants)
                named = {i for w in wants for i in w.ids}
                found |= devices.now(starting, None if any_will_do else named, shared)
            else:
                devices.close()
        return found

    def _choose(self, count: int, ids: Sequence[str]) -> Sequence[str] | None:
        return self._devices[ids[0].startswith("cpu:")].choose(count, ids)

    # --- what is told --------------------------------------------------------------------------

    def _write_board(self, reasons: dict[str, str]) -> None:
        """Write the board if what runs wait for has changed: at once if the line has, else not
        too often. `reasons`: of the runs in the line."""
        reasons |= {name: f"waits {t.reason}" for name, t in self.starts.troubles.items()}
        reasons |= {name: "starts on " + ", ".join(s.devices)
                    for name, s in self.starts.starting.items()}
        reasons = {k: v for k, v in reasons.items() if k in self._entries}
        now = time.monotonic()
        if reasons == self._board or (
                self._board is not None and reasons.keys() == self._board.keys()
                and now - self._board_at < _BOARD):
            return
        pid = os.getpid()
        board = Board(time.time(), pid, procs.start_ticks(pid), procs.boot_id(), reasons)
        try:
            write_json(waiting.board_path(self.folder, self.host), asdict(board))
        except OSError as err:
            log.error("the board can't be written: %s", err)
        self._board, self._board_at = reasons, now
