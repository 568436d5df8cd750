"""A run that waits, from the inside: its supervisor stands in the line until the run's turn has
come, takes the devices, and plans the run for them.

Each waiting supervisor sees the same files: those of the waiting runs and those of the leases. By
the rule of `turns` it finds out whether its own run is next. It looks and takes the devices under
the lock of the leases' folder, so no two come to take the same one. Only who would be next if the
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from gpu_engine.code import submitted
from gpu_engine.common import files, paths, procs
from gpu_engine.common.errors import SpecError, UserError, telling
from gpu_engine.common.files import json_inside, write_inside, write_json_inside
from gpu_engine.common.records import Whole, read_record
from gpu_engine.devices import availability, leases, probe
from gpu_engine.devices.backends import registry
from gpu_engine.devices.discover import NoAnswer, cpu_slots, discover, readings
from gpu_engine.devices.leases import held
from gpu_engine.devices.records import Inventory, Sample, Snapshot
from gpu_engine.launching import environment
from gpu_engine.launching.launcher import prepare
from gpu_engine.queue import turns
from gpu_engine.queue.turns import DeviceNow, Request, Standing, Start, Turn, Wait
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
READING = 0.3
"""Seconds between two readings of devices of which one may become free."""
_SLOWER, _SOON = 1.0, 20
"""The same after so many readings, as other people's processes may be on them for days."""
_TIMEOUT = 30.0
"""Seconds that the driver has to answer."""
_FIND_AGAIN = 60.0
"""Seconds after which devices are searched for again where the run waits for one that is not there.
"""
PATIENCE = 60.0
"""Seconds for which another user's run may leave free devices that it waits for, as when its
supervisor is stopped. Then it is waited for no longer."""
BEGINNING = 10.0
"""Seconds from our start in which runs ahead of ours have not lost their turn if nobody supervises
them: after a reboot all are started at once, and one of them is the first."""
_MOST_AHEAD = 32
"""How many of them are looked for."""
_SAID = 2.0
"""Seconds between two writes of the state while only the reason changes."""
PAUSES = (5.0, 15.0, 60.0)
"""Seconds before a run whose start did not work out is tried again."""
_MOST_FAILURES = 3
"""How often the start may fail through no fault of the run's spec."""
START_TIME = 180
"""Seconds after which planning a run is given up, as on a network disk that does not answer."""
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


class _Interrupted(BaseException):
    """A signal came while the run was planned."""


@dataclass(frozen=True, slots=True)
class _Place:
    """What stands in the file of a waiting run. Any user's, so it may say anything."""

    run: str
    queue: str
    """The folder of its queue."""
    keys: tuple[str, ...] = ()
    count: Whole = 0
    free_bytes: Whole | None = None
    cpu: bool = False
    share: bool = False
    within: tuple[str, ...] = ()
    priority: int = 0
    number: float = 0.0
    pauses: bool = False
    """Its start did not work out, and others go first for a while."""


class _View(NamedTuple):
    """The line and the leases, as they are now."""

    requests: Sequence[Request]
    held: Mapping[str, leases.Holder]


class Waiter:
    """Waits for the turn of one run, in its supervisor. Raises UserError if it has no state."""

    def __init__(self, run: Run) -> None:
        self.run, self.queue = run, waiting.folder_beside(run.path)
        recorded = State.from_dict(json_inside(run.path, "state.json"))
        if recorded is None:
            raise UserError(f"run {run.id} has no state")
        pid = os.getpid()
        self.state = replace(_unbegun(recorded), pid=pid, ticks=procs.start_ticks(pid),
                             boot=procs.boot_id())
        self._began, self._said_at = time.monotonic(), -math.inf
        self._name = ""
        """Of its file in the line, which it keeps while it has to step back."""
        self._file: leases.Leases | None = None
        self._about: Mapping[str, object] = {}
        """What stands in the file."""
        self._placed = True
        """Whether it is a place among all users, of which each has only so many."""
        self._stamp: object = None
        self._looked = -math.inf
        """When the line was read, monotonic seconds, and what its folders were like."""
        self._until, self._tries, self._failures = -math.inf, 0, 0
        """Until when it is not tried again, monotonic seconds; how often it was, and failed."""
        self._inventory: Inventory | None = None
        self._searched = -math.inf
        self._readings: Iterator[tuple[Sample, ...]] | None = None
        self._recent: tuple[Snapshot, ...] = ()
        self._read, self._slow = 0, False
        self._since: dict[str, float] = {}
        """Device → since when it has been free, monotonic seconds."""
        self._turns: dict[str, float] = {}
        """File of another user → since when it has been their turn, monotonic seconds."""
        self._passed: set[str] = set()
        """Files of others that are waited for no longer."""

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
                    taken = self._look()
                    if taken is not None:
                        self._plan([d.id for d in self._chosen])
                        return taken
                except (_NotYet, OSError, NoAnswer) as err:
                    self._try_later(str(err) if isinstance(err, _NotYet) else f"as {err}")
                except _Over:
                    raise
                except Exception as err:
                    log.exception("the start")
                    self._try_later(f"as its start failed: {err!r}; see supervisor.log",
                                    failed=True)
                if taken is not None:
                    taken.close()
                    taken = None
                reap(())  # those that have read devices or were asked
                if signal.sigpending() & STOPS or (self._readings is None and signal.sigtimedwait(
                        STOPS, INTERVAL * (1 + random.random() / 2)) is not None):
                    raise _Over("stopped", "stopped while it waited for its turn")
        except _Over as err:
            log.info("it ends: %s", err)
            if taken is not None:
                taken.close()
            self._end(err)
            return None
        finally:
            self._stop_reading()
            self._step_back()

    def again(self, why: str) -> None:
        """Wait again: somebody else has come onto the devices since the run's turn came."""
        log.info("it waits again: %s", why)
        recorded = State.from_dict(json_inside(self.run.path, "state.json")) or self.state
        self.state = replace(_unbegun(recorded), pid=self.state.pid, ticks=self.state.ticks)
        self._try_later("for devices that others took meanwhile")

    # --- one look ------------------------------------------------------------------------------

    def _look(self) -> leases.Leases | None:
        """Look at the line once, and take the devices if it is the run's turn."""
        entry = waiting.read(self.run.path)
        if entry is None:
            raise _Over("stopped", "what it waits for can't be read any more: queue.json is gone")
        first = None
        if entry.after is not None:
            ahead = Run(self.run.path.parent / entry.after)
            first = ahead.state().state if ahead.path.is_dir() else None
        if (early := turns.early(entry, first, time.time())) is not None:
            if early[1]:
                raise _Over("stopped", early[0])
            self._say(f"waits {early[0]}")
            self._stop_reading()
            self._step_back()
            return None
        inventory, pauses = self._find_devices(entry), time.monotonic() < self._until
        self._stand(entry, inventory, pauses)
        if pauses:
            return None
        folder, now = paths.leases_folder(), time.monotonic()
        stamp = (leases.stamp(folder), entry)
        if self._readings is None and stamp == self._stamp and now - self._looked < _ANEW:
            return None
        self._stamp, self._looked = stamp, now
        view = self._view(entry, inventory)
        unread = self._devices(inventory, view.held, read=False)
        among_ours = turns.decide([r for r in view.requests if r.owner is None], unread,
                             monotonic=now, choose=lambda n, ids: ids[:n])
        next_here = any(isinstance(d, Start) and d.id == self.run.id for d in among_ours)
        if entry.cpu or not next_here:
            self._stop_reading()
            devices = unread
        else:
            self._read_devices(inventory)
            devices = self._devices(inventory, view.held, read=True)
        mine = self._decide(view, devices)
        if not isinstance(mine, Start):
            self._say(f"waits {mine.reason}" if mine is not None else waiting.FIRST)
            return None
        if not (entry.cpu or next_here):
            return None  # as far as anybody can tell without a look at the devices
        with leases.alone(folder):
            view = self._view(entry, inventory)
            devices = self._devices(inventory, view.held, read=not entry.cpu)
            mine = self._decide(view, devices)
            if not isinstance(mine, Start):
                return None
            self._chosen = [d for d in map(inventory.find, mine.devices) if d is not None]
            taken = leases.take(folder, self._chosen, self.run.id, entry.share)
            self._step_back()
        self._stop_reading()
        labels = ", ".join(d.label for d in self._chosen)
        log.info("its turn has come: it starts on %s", labels)
        self._say(f"starts on {labels}", at_once=True)
        return taken

    def _decide(self, view: _View, devices: Mapping[str, DeviceNow]) -> Start | Wait | None:
        """What becomes of the run. Notes whose turn of the other users it is."""
        now = time.monotonic()
        decisions = turns.decide(view.requests, devices, monotonic=now, choose=self._choose)
        self._turns = {d.id: self._turns.get(d.id, now) for d in decisions if isinstance(d, Turn)}
        return next((d for d in decisions if not isinstance(d, Turn) and d.id == self.run.id), None)

    def _view(self, entry: Entry, inventory: Inventory) -> _View:
        """The line in its order, and who holds what. Raises OSError."""
        folder, host = paths.leases_folder(), socket.gethostname()
        ids = {leases.key(d): d.id for d in inventory.devices}
        ours, entries = (os.geteuid(), str(self.queue)), waiting.line(self.queue)
        entries = {name: e for name, e in entries.items() if e.host == host} | {self.run.id: entry}
        standing: list[Standing] = []
        served = set[str]()
        late = [name for name, since in self._turns.items() if time.monotonic() - since > PATIENCE]
        last = leases.lines(folder)[-1]
        for file in leases.waiting(folder):
            name = file.path.name
            try:
                place = read_record(_Place, file.said)
            except ValueError:  # nonsense
                continue
            owner = (file.uid, place.queue)
            if owner == ours:
                if not file.live and place.run not in entries:
                    leases.forget(folder, name)
                if file.live and (known := entries.get(place.run)) is not None \
                        and place.run not in served:
                    served.add(place.run)
                    if not place.pauses:
                        standing.append(_standing(
                            place.run, known, inventory, ours,
                            name if file.path.parent == last else None))
            elif file.live and (place.keys or place.count) and place.cpu == entry.cpu \
                    and not place.pauses:
                if name in late:
                    log.warning("%s has not taken its turn for %.0f s, and is passed over",
                                file.user, PATIENCE)
                    self._passed.add(name)
                wants = Wants(tuple(ids.get(k, k) for k in place.keys), place.count,
                              tuple(ids.get(k, k) for k in place.within), place.free_bytes,
                              place.share, place.cpu)
                if name not in self._passed:
                    standing.append(Standing(Request(name, wants, file.user), owner, name,
                                             (-place.priority, place.number, 0.0, place.run)))
        holders = leases.holders(folder)
        starting = {each.run for one in holders.values() for each in (one, *one.others)}
        missing = [name for name in entries if name not in served | starting | {self.run.id}]
        standing += [_standing(name, entries[name], inventory, ours, None)
                     for name in self._about_to_stand(missing, entries)]
        if self.run.id not in served:  # as on a full disk
            standing.append(_standing(self.run.id, entry, inventory, ours, None))
        return _View(turns.in_turn(standing), holders)

    def _about_to_stand(self, names: Sequence[str], entries: Mapping[str, Entry]) -> Iterator[str]:
        """Those of our runs ahead of this one without a file that count all the same: their
        supervisor is just beginning, or gets started, as those of the next members of a sweep, and
        after a reboot all."""
        now, beginning = time.time(), time.monotonic() - self._began < BEGINNING
        goes_on: dict[str, bool] = {}
        own = waiting.place(self.run.id, entries[self.run.id])
        for name in names[:_MOST_AHEAD]:
            entry = entries[name]
            if entry.sweep is not None and entry.sweep not in goes_on:
                lock = waiting.sweep_lock(self.queue, entry.sweep)
                goes_on[entry.sweep] = bool(files.locked(lock))
            if waiting.place(name, entry) < own and entry.after is None \
                    and (entry.begin is None or entry.begin <= now) \
                    and ((beginning if entry.sweep is None else goes_on[entry.sweep])
                         or Run(self.run.path.parent / name).supervised()):
                yield name

    # --- its own place -------------------------------------------------------------------------

    def _stand(self, entry: Entry, inventory: Inventory, pauses: bool) -> None:
        """Have a file in the line that says what the run waits for."""
        def keys(ids: Sequence[str]) -> list[str]:
            found = [(i, inventory.find(i)) for i in ids]
            return [i if device is None else leases.key(device) for i, device in found]

        place = _Place(self.run.id, str(self.queue), tuple(keys(entry.ids)), entry.count,
                       entry.free, entry.cpu, entry.share, tuple(keys(entry.within)),
                       entry.priority, entry.number, pauses)
        about = asdict(place)
        if self._file is not None and about == self._about and self._placed:
            return
        folder = paths.leases_folder()
        try:
            with leases.alone(folder):
                last, ours = leases.lines(folder)[-1], [
                    f for f in leases.waiting(folder)
                    if f.mine and f.said.get("queue") == str(self.queue)]
                others = [f for f in ours if f.live and f.path.parent == last
                          and f.said.get("run") != self.run.id]
                placed = len(others) < turns.PLACES
                if self._file is not None and about == self._about and not placed:
                    return
                if not self._name:  # a supervisor before this one may have left its place
                    self._name = next((f.path.name for f in ours if not f.live
                                       and f.said.get("run") == self.run.id), held.name())
                elif placed and not self._placed:
                    self._name = held.name()  # behind those who have come meanwhile
                self._step_back()
                self._file = leases.wait(folder, about, self._name, among_all=placed)
                self._about, self._placed = about, placed
        except OSError as err:
            log.warning("no place among the waiting runs: %s", err)

    def _step_back(self) -> None:
        """Stand in the line no longer."""
        if self._file is not None:
            self._file.close()
            self._file = None

    # --- the devices ---------------------------------------------------------------------------

    def _find_devices(self, entry: Entry) -> Inventory:
        """All devices of the kind that the run waits for, also those that this process's
        environment hides: other runs wait for them, and may have come first."""
        known, now = self._inventory, time.monotonic()
        lacks = known is None or not known.devices or any(
            known.find(i) is None for i in (*entry.ids, *entry.within))
        if known is None or (lacks and now - self._searched > _FIND_AGAIN):
            self._searched = now
            found = cpu_slots() if entry.cpu else _all_gpus()
            probe.drop()
            if found != known:
                self._stop_reading()
            self._inventory = found
            return found
        return known

    def _read_devices(self, inventory: Inventory) -> None:
        """Wait for the next reading. Raises NoAnswer."""
        slow = self._read >= _SOON
        if self._readings is None or slow != self._slow:
            self._close_readings()
            self._slow = slow
            self._readings = readings(
                inventory.source, inventory.devices, _TIMEOUT,
                lambda: bool(signal.sigpending() & STOPS), _SLOWER if slow else READING)
        samples = next(self._readings, None)
        if samples is None:
            self._close_readings()
            return
        self._read += 1
        self._recent = (*self._recent, Snapshot(time.time(), samples))[-availability.READINGS:]

    def _close_readings(self) -> None:
        close, self._readings = getattr(self._readings, "close", None), None
        if close is not None:
            close()

    def _stop_reading(self) -> None:
        self._close_readings()
        self._recent, self._read = (), 0

    def _devices(self, inventory: Inventory, holders: Mapping[str, leases.Holder], *, read: bool
                 ) -> dict[str, DeviceNow]:
        """The devices as they are now. Not `read`: as far as the leases tell, which for CPU slots
        is all: on a busy machine a run would wait for ever."""
        states = availability.judge_all(self._recent, holders) if read and self._recent else {}
        now, found = time.monotonic(), {}
        for device in inventory.devices:
            sample = self._recent[-1].of(device.id) if read and self._recent else None
            holder, judged = holders.get(leases.key(device)), states.get(device.id)
            if holder is not None:
                why = f"is held by {holder}"
            elif not read or (judged is not None and judged.free):
                why = ""
            else:
                why = f"is not free: {judged.reason}" if judged is not None else "is being read"
            if why:
                self._since.pop(device.id, None)
            elif read or device.is_cpu:
                self._since.setdefault(device.id, now)
            found[device.id] = DeviceNow(
                device.id, device.label, not why, why,
                usable=device.is_cpu or not read or (sample is not None and sample.problem is None),
                memory=device.memory_total if not read else
                None if sample is None else availability.free_memory(sample),
                total=device.memory_total, cpu=device.is_cpu,
                since=self._since.get(device.id) if read or device.is_cpu else -math.inf)
        return found

    def _choose(self, count: int, ids: Sequence[str]) -> Sequence[str] | None:
        """The best `count` of these devices, which are free or may be shared; None if they do not
        go together, as a GPU and a slice."""
        if not self._recent:
            return ids[:count]
        newest = self._recent[-1]
        samples = tuple(replace(s, processes=()) for s in newest.samples if s.device.id in ids)
        try:
            chosen = availability.freest(count, [replace(newest, samples=samples)], {}, readings=1)
        except UserError:  # shared ones that are not free: those with the most memory left
            able = availability.unmixed([s for s in newest.samples if s.device.id in ids], count)
            able = sorted(able, key=lambda s: -(availability.free_memory(s) or 0))[:count]
            return [s.device.id for s in able] if len(able) == count else None
        return [d.id for d in chosen]

    # --- its turn has come ---------------------------------------------------------------------

    def _plan(self, ids: list[str]) -> None:
        """Check and plan the run for these devices, in the folder of its code, and write that down.
        Raises _NotYet, _Over, OSError."""
        run, entry = self.run, waiting.read(self.run.path)
        assert entry is not None
        try:
            with _interruptible(START_TIME):
                try:
                    disk_room.require(run.path)
                except UserError as err:
                    raise _NotYet(f"for room on the disk: {err}") from None
                spec = from_dict(attempts.read_spec(run))
                spec = replace(spec, devices=replace(spec.devices, ids=ids, pick=None,
                                                     free_gib=None))
                folder, spec = submitted.place_of(run, spec, entry)
                with telling(f"{folder}: can't be entered"):
                    os.chdir(folder)
                ready = prepare(spec, cwd=folder, in_turn=run.id,
                                near=Path(entry.folder or folder))
        except _Interrupted as err:
            if err.args[0] != signal.SIGALRM:
                raise _Over("stopped", "stopped before its ranks started") from None
            raise RuntimeError(f"it was not planned within {START_TIME} s") from None
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

    def _try_later(self, why: str, *, failed: bool = False) -> None:
        """Have others go first for a while. Raises _Over after too many failures that are not about
        devices."""
        self._stop_reading()
        self._tries, self._failures = self._tries + 1, self._failures + failed
        if self._failures >= _MOST_FAILURES:
            raise _Over("failed", f"it could not be started, and waited {why}")
        self._looked = -math.inf
        self._until = time.monotonic() + PAUSES[min(self._tries, len(PAUSES)) - 1]
        log.warning("it waits %s", why)
        self._say(f"waits {why}", at_once=True)

    def _end(self, over: _Over) -> None:
        try:
            self.run.write_state(replace(
                self.state, state=over.state, ended=time.time(),
                exit_code=EXIT_CODES[over.state], reason=str(over), cause=over.cause))
            waiting.leave(self.run.path)
        except OSError as err:
            log.error("its end can't be written: %s", err)


def _unbegun(state: State) -> State:
    """The state of a run whose attempt was about to begin, as it was before."""
    begun = [a for a in state.attempts if a.number == state.attempt]
    return replace(state, state="queued", started=None, reason=None,
                   attempts=tuple(a for a in state.attempts if a not in begun),
                   changed=begun[0].changed if begun else state.changed)


def _standing(name: str, entry: Entry, inventory: Inventory, owner: tuple[int, str],
              file: str | None) -> Standing:
    def ids(named: Sequence[str]) -> tuple[str, ...]:
        found = [(i, inventory.find(i)) for i in named]
        return tuple(i if device is None else device.id for i, device in found)

    wants = replace(entry, ids=ids(entry.ids), within=ids(entry.within))
    return Standing(Request(name, wants), owner, file, waiting.place(name, entry))


def _all_gpus() -> Inventory:
    """All GPUs of this machine, whatever the environment hides."""
    hidden = {variable: os.environ.pop(variable) for name in registry.BACKENDS
              for variable in registry.load(name).variables if variable in os.environ}
    try:
        return discover()
    finally:
        os.environ.update(hidden)


@contextlib.contextmanager
def _interruptible(seconds: int) -> Iterator[None]:
    """Have the signals that stop a run, and the time limit, raise _Interrupted meanwhile."""
    def interrupt(number: int, _: FrameType | None) -> None:
        raise _Interrupted(signal.Signals(number))

    before = {n: signal.signal(n, interrupt) for n in (*STOPS, signal.SIGALRM)}
    try:
        signal.alarm(seconds)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        yield
    finally:
        signal.alarm(0)
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        for number, handler in before.items():
            signal.signal(number, handler)
