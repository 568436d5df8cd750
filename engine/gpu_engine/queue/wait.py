"""A run that waits, from the inside: its supervisor stands in the line until the run's turn has
come, takes the devices, and plans the run for them.

Ahead of the run stand those of this user whose entries come before it and that something starts,
and other users' by the files that all users of the machine share. By the rule of `turns` each
waiting supervisor finds out whether its own run is next. It looks and takes the devices under the
lock of the leases' folder, so no two come to take the same one. Only who would be next if the
leases were all there is has the driver read, to see who else is on the devices.

Nothing of this process is kept anywhere but in its files: killed at any point before the first rank
starts, it leaves a run that waits (`runs/waiting.py`).
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import random
import signal
import socket
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from gpu_engine.code import submitted
from gpu_engine.common import files, paths, procs
from gpu_engine.common.errors import SpecError, UserError, telling
from gpu_engine.common.files import json_inside, write_inside, write_json_inside
from gpu_engine.common.records import read_record
from gpu_engine.devices import leases, probe
from gpu_engine.devices.discover import NoAnswer
from gpu_engine.devices.records import Device, Inventory
from gpu_engine.launching import environment
from gpu_engine.launching.launcher import prepare
from gpu_engine.queue import turns
from gpu_engine.queue.free import Devices
from gpu_engine.queue.turns import DeviceNow, Request, Start, Wait
from gpu_engine.runs import attempts, disk_room, waiting
from gpu_engine.runs.folder import EXIT_CODES, Cause, Run, State, StateName
from gpu_engine.runs.waiting import Entry, Wants
from gpu_engine.spec.read import from_dict
from gpu_engine.spec.write import to_toml
from gpu_engine.supervisor.children import reap
from gpu_engine.supervisor.supervise import STOPS

INTERVAL = 0.5
"""Seconds between two looks at whether the line or the leases have changed, to which a random share
is added."""
_ANEW = 4.0
"""Seconds after which they are read even if not: a killed process changes no folder."""
PATIENCE = 60.0
"""Seconds for which another user's run may leave free devices that it waits for, as when its
supervisor is stopped or its home does not answer. Then it is waited for no longer."""
_SAID = 2.0
"""Seconds between two writes of the state while only the reason changes."""
PAUSES = (5.0, 15.0, 60.0)
"""Seconds before a run whose start did not work out is tried again."""
_PASSING = ("devices.", "parallel.master_port")
"""Keys whose problems may pass: somebody else has the device, or the port."""

log = logging.getLogger(__name__)


class _Over(Exception):
    """The run will not start: how it ends, and why."""

    def __init__(self, state: StateName, reason: str, cause: Cause | None = None) -> None:
        super().__init__(reason)
        self.state: StateName = state
        self.cause = cause


class _NotYet(Exception):
    """The run has to wait on; says what for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place(Wants):
    """What stands in the file of a waiting run: devices by the keys of their leases. Any user's, so
    it may say anything."""

    run: str
    queue: str
    """The folder of its queue: a user may have several."""
    priority: int = 0
    number: float = 0.0


class Waiter:
    """Waits for the turn of one run, in its supervisor. Raises UserError if it has no state."""

    def __init__(self, run: Run) -> None:
        self.run, self.queue = run, waiting.folder_beside(run.path)
        self.state = self._recorded()
        self.devices = Devices()
        self._file: leases.Leases | None = None
        self._about: Mapping[str, object] = {}
        """What stands in the file."""
        self._stamp: object = None
        self._looked = self._said_at = self._until = -math.inf
        """When the line was read, the reason was written, and until when the run is not tried
        again; monotonic seconds."""
        self._tries = 0
        self._turns: dict[Request, float] = {}
        """Another user's run → since when it has been its turn, monotonic seconds."""
        self._passed: set[Request] = set()
        """Those that are waited for no longer."""

    def _recorded(self) -> State:
        """The run's state, as it was before the attempt that was about to begin."""
        recorded = State.from_dict(json_inside(self.run.path, "state.json"))
        if recorded is None:
            raise UserError(f"run {self.run.id} has no state")
        begun = [a for a in recorded.attempts if a.number == recorded.attempt]
        pid = os.getpid()
        return replace(recorded, state="queued", started=None, reason=None,
                       attempts=tuple(a for a in recorded.attempts if a not in begun),
                       changed=begun[0].changed if begun else recorded.changed,
                       pid=pid, ticks=procs.start_ticks(pid), boot=procs.boot_id())

    def take_turn(self) -> leases.Leases | None:
        """Wait until it is the run's turn. Returns the leases of its devices, for which its plan
        has been written; None: the run has ended before it could start."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        self._say(self.state.reason or waiting.FIRST, at_once=True)  # and whom a stop is for
        self._said_at = -math.inf
        taken = None
        try:
            while True:
                try:
                    if (got := self._look()) is not None:
                        taken, chosen = got
                        labels = ", ".join(d.label for d in chosen)
                        log.info("its turn has come: it starts on %s", labels)
                        self._say(f"starts on {labels}", at_once=True)
                        self._plan([d.id for d in chosen])
                        return taken
                except (_NotYet, OSError, NoAnswer) as err:
                    self._try_later(str(err) if isinstance(err, _NotYet) else f"as {err}")
                if taken is not None:
                    taken.close()
                    taken = None
                reap(())  # those that have read devices or were asked
                if signal.sigpending() & STOPS or (not self.devices.reading and signal.sigtimedwait(
                        STOPS, INTERVAL * (1 + random.random() / 2)) is not None):
                    raise _Over("stopped", "stopped while it waited for its turn")
        except Exception as err:
            if not isinstance(err, _Over):
                log.exception("the start")
                why = f"its start failed: {err!r}; see supervisor.log"
                err = _Over("failed", why, Cause(why))
            log.info("it ends: %s", err)
            if taken is not None:
                taken.close()
            self._end(err)
            return None
        finally:
            self.devices.stop_reading()
            self._step_back()

    def again(self, why: str) -> None:
        """Wait again: somebody else has come onto the devices since the run's turn came."""
        log.info("it waits again: %s", why)
        self.state = self._recorded()
        self._try_later("for devices that others took meanwhile")

    # --- one look ------------------------------------------------------------------------------

    def _look(self) -> tuple[leases.Leases, list[Device]] | None:
        """Look at the line once, and take the devices if it is the run's turn."""
        if time.monotonic() < self._until:
            return None
        entry = waiting.read(self.run.path)
        if entry is None:
            raise _Over("stopped", "what it waits for can't be read any more: queue.json is gone")
        if (early := _early(self.run, entry)) is not None:
            if early[1]:
                raise _Over("stopped", early[0])
            self._say(f"waits {early[0]}")
            self.devices.stop_reading()
            self._step_back()
            return None
        inventory = self.devices.find(entry)
        self._stand(entry, inventory)
        folder, now = paths.leases_folder(), time.monotonic()
        stamp = (leases.stamp(folder), entry)
        if not self.devices.reading and stamp == self._stamp and now - self._looked < _ANEW:
            return None
        self._stamp, self._looked = stamp, now
        line, mine, holders = self._line(entry, inventory)
        unread = self.devices.now(holders, read=False)
        alone = self._decide([r for r in line if r.owner is None], mine, unread)
        if isinstance(alone, Wait):
            self.devices.stop_reading()
        elif not entry.cpu:
            self.devices.read()
        read = self.devices.reading
        devices = self.devices.now(holders, read=read)
        decision = self._decide(line, mine, devices)
        self._pass_over(line[:line.index(mine)], devices)
        if isinstance(decision, Start) and (entry.cpu or read):
            with leases.alone(folder):
                line, mine, holders = self._line(entry, inventory)
                decision = self._decide(line, mine, self.devices.now(holders, read=read))
                if isinstance(decision, Start):
                    chosen = [d for d in map(inventory.find, decision.devices) if d is not None]
                    taken = leases.take(folder, chosen, self.run.id, entry.share)
                    self._step_back()
                    self.devices.stop_reading()
                    return taken, chosen
        self._say(f"waits {decision.reason}" if isinstance(decision, Wait) else waiting.FIRST)
        return None

    def _decide(self, line: Sequence[Request], mine: Request, devices: Mapping[str, DeviceNow]
                ) -> Start | Wait:
        return turns.decide(line[:line.index(mine)], mine, devices,
                            choose=self.devices.choose)

    def _pass_over(self, ahead: Sequence[Request], devices: Mapping[str, DeviceNow]) -> None:
        """Note of which other users' runs it is the turn, and wait no longer for those that leave
        their devices untouched."""
        now, theirs = time.monotonic(), dict[Request, float]()
        for at, request in enumerate(ahead):
            if request.owner and isinstance(self._decide(ahead[:at + 1], request, devices), Start):
                theirs[request] = self._turns.get(request, now)
                if now - theirs[request] > PATIENCE:
                    log.warning("%s has not taken its turn for %.0f s, and is passed over",
                                request.owner, PATIENCE)
                    self._passed.add(request)
        self._turns = theirs

    def _line(self, entry: Entry, inventory: Inventory
              ) -> tuple[list[Request], Request, Mapping[str, leases.Holder]]:
        """The line of all users and this run in it, and who holds what, as they are now. Raises
        OSError."""
        folder = paths.leases_folder()
        ours, holders = (os.geteuid(), str(self.queue)), leases.holders(folder)
        ids = _names(inventory, lambda device: device.id)
        mine = Request(self.run.id, _named(entry, ids))
        runs = {ours: [*self._ahead(entry, ids, holders.values()), mine]}
        names: dict[tuple[int, str], list[str]] = {}
        others: list[tuple[tuple[object, ...], tuple[int, str], Request]] = []
        for file in leases.waiting(folder):
            try:
                place = read_record(_Place, file.said)
            except ValueError:  # nonsense
                continue
            owner = file.uid, place.queue
            if not file.live or place.cpu != entry.cpu:
                if file.mine and not file.live:  # what a killed supervisor has left
                    leases.forget(folder, file.path.name)
                continue
            names.setdefault(owner, []).append(file.path.name)
            if owner != ours:
                others.append(((-place.priority, place.number, file.path.name), owner,
                               Request(place.run, _named(place, ids), file.user)))
        for _, owner, request in sorted(others, key=lambda one: one[0]):
            if request not in self._passed:
                runs.setdefault(owner, []).append(request)
        line = turns.in_turn((own, names.get(owner, ())) for owner, own in runs.items())
        return line, mine, holders

    def _ahead(self, own: Entry, ids: Mapping[str, str], holders: Iterable[leases.Holder]
               ) -> list[Request]:
        """Our runs ahead of this one, in their order, that something starts: their supervisor, or
        the process of their sweep. Not those that have their devices already."""
        starting = {each.run for one in holders for each in (one, *one.others)}
        place, host = waiting.place(self.run.id, own), socket.gethostname()
        serves: dict[str, bool] = {}
        found = []
        for name, entry in waiting.line(self.queue).items():
            if waiting.place(name, entry) >= place:
                break
            run, sweep = Run(self.run.path.parent / name), entry.sweep
            if sweep is not None and sweep not in serves:
                serves[sweep] = bool(files.locked(waiting.sweep_lock(self.queue, sweep)))
            if entry.host == host and entry.cpu == own.cpu and name not in starting \
                    and name != self.run.id and _early(run, entry) is None \
                    and (serves.get(sweep or "") or run.supervised()):
                found.append(Request(name, _named(entry, ids)))
        return found

    # --- its own place -------------------------------------------------------------------------

    def _stand(self, entry: Entry, inventory: Inventory) -> None:
        """Have a file that says to other users what the run waits for, and since when."""
        wants = _named(entry, _names(inventory, leases.key))
        about = asdict(_Place(
            **{f.name: getattr(wants, f.name) for f in fields(Wants)}, run=self.run.id,
            queue=str(self.queue), priority=entry.priority, number=entry.number))
        if self._file is not None and about == self._about:
            return
        folder = paths.leases_folder()
        # The same for each supervisor of this run: whoever goes on with it has its place.
        name = f"{int(entry.submitted * 1e9):019d}-{zlib.crc32(os.fsencode(self.run.path)):08x}"
        try:
            with leases.alone(folder):
                self._step_back()
                self._file, self._about = leases.wait(folder, about, name), about
        except OSError as err:
            log.warning("no place among the waiting runs: %s", err)

    def _step_back(self) -> None:
        """Stand in the line no longer."""
        if self._file is not None:
            self._file.close()
            self._file = None

    # --- its turn has come ---------------------------------------------------------------------

    def _plan(self, ids: list[str]) -> None:
        """Check and plan the run for these devices, in the folder of its code, and write that down.
        Raises _NotYet, _Over, OSError."""
        run, entry = self.run, waiting.read(self.run.path)
        if entry is None:
            raise _NotYet("for its entry in the queue")
        try:
            try:
                disk_room.require(run.path)
            except UserError as err:
                raise _NotYet(f"for room on the disk: {err}") from None
            spec = from_dict(attempts.read_spec(run))
            spec = replace(spec, devices=replace(spec.devices, ids=ids, pick=None, free_gib=None))
            folder, spec = submitted.place_of(run, spec, entry)
            with telling(f"{folder}: can't be entered"):
                os.chdir(folder)
            ready = prepare(spec, cwd=folder, in_turn=run.id, near=Path(entry.folder or folder))
        except UserError as err:
            if isinstance(err, SpecError) and all(p.key.startswith(_PASSING) for p in err.problems):
                raise _NotYet(f"as it could not start: {err}") from None
            first = str(err).splitlines()[0] if str(err) else "it could not be started"
            raise _Over("failed", f"it could not start when its turn came: {first}",
                        Cause(str(err))) from None
        finally:
            os.chdir("/")
            probe.drop()  # nothing of ours may look like a process of the run
        before = run.plan()
        plan = replace(ready.plan, id=run.id, cwd=str(folder),
                       origin=before.origin if before is not None else None)
        write_inside(run.path, "spec.toml", to_toml(ready.spec))
        write_json_inside(run.path, "plan.json", plan.to_dict())
        environment.note(run, plan, ready.inventory)

    # --- what is told --------------------------------------------------------------------------

    def _say(self, reason: str, *, at_once: bool = False) -> None:
        """Have the state give this reason, though not anew all the time."""
        now = time.monotonic()
        if reason == self.state.reason or (not at_once and now - self._said_at < _SAID):
            return
        self.state, self._said_at = replace(self.state, state="queued", reason=reason), now
        try:
            self.run.write_state(self.state, settled=False)
        except OSError as err:
            log.error("state.json can't be written: %s", err)

    def _try_later(self, why: str) -> None:
        """Have others go first for a while."""
        self.devices.stop_reading()
        self._step_back()
        self._tries += 1
        pause = PAUSES[min(self._tries, len(PAUSES)) - 1]
        self._looked, self._until = -math.inf, time.monotonic() + pause
        log.warning("it waits %s", why)
        self._say(f"waits {why}", at_once=True)
        # For our other runs it is one whose time has not come.
        entry = waiting.read(self.run.path)
        with contextlib.suppress(OSError):
            if entry is not None:
                waiting.write(self.run.path, replace(entry, begin=time.time() + pause))

    def _end(self, over: _Over) -> None:
        try:
            self.run.write_state(replace(
                self.state, state=over.state, ended=time.time(),
                exit_code=EXIT_CODES[over.state], reason=str(over), cause=over.cause))
            waiting.leave(self.run.path)
        except OSError as err:
            log.error("its end can't be written: %s", err)


def _early(run: Run, entry: Entry) -> tuple[str, bool] | None:
    """`turns.early`, with the state of the run that this one follows."""
    first = None
    if entry.after is not None:
        ahead = Run(run.path.parent / entry.after)
        first = ahead.state().state if ahead.path.is_dir() else None
    return turns.early(entry, first, time.time())


def _names(inventory: Inventory, of: Callable[[Device], str]) -> dict[str, str]:
    """Each name that a device may have in an entry or a file, and that which `of` gives it."""
    return {name: of(d) for d in inventory.devices for name in (leases.key(d), d.uuid, d.id)
            if name is not None}


def _named(wants: Wants, names: Mapping[str, str]) -> Wants:
    """What is waited for, with the devices by these names."""
    return replace(wants, ids=tuple(names.get(i, i) for i in wants.ids),
                   within=tuple(names.get(i, i) for i in wants.within))
