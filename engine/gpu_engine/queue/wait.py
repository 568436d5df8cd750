"""A run that waits, from the inside: its supervisor stands in the line until the run's turn has
come, takes the devices, plans the run for them, and sees that nobody has come onto them meanwhile.

Ahead of the run stand those of this user whose entries come before it and that something starts,
and other users' by the files that all users of the machine share. By the rule of `turns` each
waiting supervisor finds out whether its own run is next. It looks and takes the devices under the
lock of the leases' folder, so no two come to take the same one. Only who would be next if the
leases were all there is has the driver read, to see who else is on the devices.

Nothing of this process is kept anywhere but in its files: killed at any point before the run leaves
the line, it leaves a run that waits (`runs/waiting.py`); from then on the run is lost.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gpu_engine.code import submitted
from gpu_engine.code.submitted import Kept
from gpu_engine.common import files, paths, procs
from gpu_engine.common.errors import HostProblem, SpecError, TooFew, UserError, telling
from gpu_engine.common.files import json_inside, write_inside, write_json_inside
from gpu_engine.common.records import find_record, read_record
from gpu_engine.devices import availability, leases, probe
from gpu_engine.devices.backends import registry
from gpu_engine.devices.discover import NoAnswer, cpu_slots, discover, readings
from gpu_engine.devices.records import Device, Inventory, Sample, Snapshot
from gpu_engine.launching import environment
from gpu_engine.launching.launcher import Prepared, prepare
from gpu_engine.places.verbs import Followed
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.queue import serve, turns
from gpu_engine.queue.turns import DeviceNow, Request, Start, Wait
from gpu_engine.runs import attempts, disk_room, waiting
from gpu_engine.runs.folder import EXIT_CODES, Cause, Run, State, StateName
from gpu_engine.runs.state import MADE_ROOM, MAKES_ROOM
from gpu_engine.runs.waiting import Entry, Wants
from gpu_engine.spec.read import from_dict
from gpu_engine.spec.write import to_toml
from gpu_engine.supervisor import start
from gpu_engine.supervisor.children import STOPS, asked_to_end, reap, wait_for_signal

INTERVAL = 0.5
"""Seconds between two looks at whether the line or the leases have changed, to which a random share
is added; and between two readings of devices of which one may become free."""
_ANEW = 4.0
"""Seconds after which they are read even if not: a killed process changes no folder."""
FIND_AGAIN = 60.0
"""Seconds after which devices are searched for again where the run waits for one that is not there,
as soon after a reboot."""
_SAID = 2.0
"""Seconds between two writes of the state while only the reason changes."""
PAUSES = (5.0, 15.0, 60.0)
"""Seconds before a run whose start did not work out is tried again."""
_PASSING = ("devices.", "parallel.master_port")
"""Keys whose problems may pass: somebody else has the device, or the port."""

SETTLING = "for its devices to stay free for a while (run.give_way_back)"
"""The reason of a run that made room, once nothing else keeps it from going on."""

log = logging.getLogger(__name__)


class Over(Exception):
    """The run will not start: how it ends, and why."""

    def __init__(self, state: StateName, reason: str, cause: Cause | None = None) -> None:
        super().__init__(reason)
        self.state: StateName = state
        self.cause = cause


class NotYet(Exception):
    """The run has to wait on; says what for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place(Wants):
    """What stands in the file of a waiting run. Any user's, so it may say anything."""

    run: str
    queue: str
    """The folder of its queue: a user may have several."""
    priority: int = 0
    number: float = 0.0


def _again(state: State, ended: float | None) -> State:
    """The state of a run whose supervisor was killed while it made room: that attempt has ended at
    `ended`, and it waits for the next."""
    if not state.attempts or state.attempts[-1].outcome is not None:
        return state
    *before, last = state.attempts
    whom = (state.reason or "").removeprefix(MAKES_ROOM) or "another"
    closed = replace(last, outcome=MADE_ROOM, ended=ended,
                     reason=f"made room for {whom}, and its supervisor was killed,")
    return replace(state, attempt=max(state.attempt, last.number + 1), processes=(), until=None,
                   attempts=(*before, closed))


def _request(devices: Sequence[Device], run: str, wants: Wants, owner: str | None = None
             ) -> Request:
    """A place in the line, with its devices by their ids."""
    # Each name that a device may have in an entry or a file.
    ids = {name: d.id for d in devices for name in (leases.key(d), d.uuid, d.id)}
    return Request(run, replace(wants, ids=tuple(ids.get(i, i) for i in wants.ids),
                                within=tuple(ids.get(i, i) for i in wants.within)), owner)


def standing(folder: Path, devices: Sequence[Device], *, cpu: bool | None,
             ours: tuple[tuple[int, str], Sequence[Request]] | None = None) -> list[Request]:
    """The line of all users for these devices, or for GPUs and CPU slots, by their files. `ours`:
    the user id and the queue's folder of whoever asks, and what stands there, which is known more
    exactly. Raises OSError."""
    runs, names = dict([ours] if ours is not None else ()), dict[tuple[int, str], list[str]]()
    found: list[tuple[tuple[object, ...], tuple[int, str], Request]] = []
    for file in leases.waiting(folder):
        if file.mine and not file.live:  # what a killed supervisor has left
            leases.forget(folder, file.path.name)
        place = find_record(_Place, file.said)
        if place is None or not file.live or place.cpu != cpu:
            continue
        owner = file.uid, place.queue
        names.setdefault(owner, []).append(file.path.name)
        if ours is None or owner != ours[0]:
            found.append(((place.give_way, -place.priority, place.number, file.path.name), owner,
                          _request(devices, place.run, place, None if file.mine else file.user)))
    for _, owner, theirs in sorted(found, key=lambda one: one[0]):
        runs[owner] = [*runs.get(owner, ()), theirs]
    return turns.in_turn((own, names.get(owner, ())) for owner, own in runs.items())


def decide(queue: Path, run: str, own: Entry, devices: Devices, *, read: bool) -> Start | Wait:
    """What becomes of the run with the id `run`, which waits for `own`, by the leases and the line
    as they are now. `queue`: the queue's folder; `read`: by what the driver says, too. Raises
    OSError."""
    folder, ours = paths.leases_folder(), (os.geteuid(), str(queue))
    holders, inventory = leases.holders(folder), devices.inventory
    assert inventory is not None
    runs = [_request(inventory.devices, *ahead)
            for ahead in (*ahead_of(queue, run, own, holders), (run, own))]
    mine = runs[-1]
    line = standing(folder, inventory.devices, cpu=own.cpu, ours=(ours, runs))
    return turns.decide(line[:line.index(mine)], mine, devices.now(holders, read=read),
                        choose=devices.choose)


def ahead_of(queue: Path, run: str, own: Entry, holders: Mapping[str, leases.Holder]
             ) -> Iterator[tuple[str, Entry]]:
    """Our runs ahead of this one, in their order, that something starts: their supervisor, or the
    process of their sweep. Not those that have their devices already."""
    starting = {each.run for first in holders.values() for each in (first, *first.others)}
    for name, entry in waiting.line(queue).items():
        if waiting.place(name, entry) >= waiting.place(run, own):
            break
        other = Run(queue.parent / "runs" / name)
        if (entry.host, bool(entry.cpu), not entry.hosts) \
                == (socket.gethostname(), bool(own.cpu), not own.hosts) \
                and name not in (*starting, run) \
                and serve.early(entry, other.path.parent) is None and (
                    other.supervised() or (entry.sweep is not None and files.locked(
                        waiting.sweep_lock(queue, entry.sweep)))):
            yield name, entry


class Waiter:
    """Waits for the turn of one run, in its supervisor. Raises UserError if it has no state."""

    def __init__(self, run: Run) -> None:
        self.run, self.queue = run, waiting.folder_beside(run.path)
        recorded, pid = State.from_dict(json_inside(run.path, "state.json")), os.getpid()
        if recorded is None:
            raise UserError(f"run {run.id} has no state")
        stood: float | None = None
        with contextlib.suppress(OSError):
            stood = (run.path / waiting.FILE).stat().st_mtime  # it stood in the line again
        self.state = replace(_again(recorded, stood), state="queued", started=None, reason=None,
                             pid=pid, ticks=procs.start_ticks(pid), boot=procs.boot_id())
        self.devices = Devices()
        self._file: leases.Leases | None = None
        self._about: Mapping[str, Any] = {}
        """What stands in the file."""
        self._stamp: object = None
        self._looked = self._said_at = self._until = -math.inf
        """When the line was read, the reason was written, and until when the run is not tried
        again; monotonic seconds."""
        self._tries = 0
        self._room = self.state.made_room(time.time())
        """For whom it has made room since it trained last, in words."""
        self._free_since: float | None = None
        """Since when nothing but that keeps it from its start, monotonic seconds."""
        self._ahead_on: Followed | None = None
        self.first = waiting.FIRST
        """What is said before the first look."""

    def take_turn(self) -> leases.Leases | None:
        """Wait until it is the run's turn. Returns the leases of its devices, for which its plan
        has been written, and on which nobody else is; None: the run has ended before it could
        start."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        self._say(self.first, at_once=True)  # and whom a stop is for
        self._said_at = -math.inf
        try:
            while True:
                try:
                    if (taken := self._look()) is not None:
                        return taken
                except (NotYet, OSError, NoAnswer) as err:
                    self._try_later(str(err) if isinstance(err, NotYet) else f"as {err}")
                if self._pause():
                    raise Over("stopped", "while it waited for its turn")
        except Exception as err:
            if not isinstance(err, Over):
                log.exception("the start")
                why = f"its start failed: {err!r}; see supervisor.log"
                err = Over("failed", why, Cause(why))
            log.info("it ends: %s", err)
            try:
                self.run.write_state(replace(
                    self.state, state=err.state, ended=time.time(),
                    exit_code=EXIT_CODES[err.state], reason=str(err), cause=err.cause))
                waiting.leave(self.run.path)
            except OSError as bad:
                log.error("its end can't be written: %s", bad)
            return None
        finally:
            self._step_back()

    def _pause(self) -> bool:
        """Wait for the next look. Returns whether a stop was asked for."""
        reap(())  # those that have read devices or were asked
        return asked_to_end() or (not self.devices.reading and wait_for_signal(
            STOPS, INTERVAL * (1 + random.random() / 2)) is not None)

    def _due(self) -> Entry | None:
        """What the run waits for, if only devices keep it from starting now. Raises Over."""
        if time.monotonic() < self._until:
            return None
        entry = waiting.read(self.run.path)
        if entry is None:
            raise Over("stopped", "what it waits for can't be read any more: queue.json is gone")
        if entry.after is not None:
            self._ask_about(Run(self.run.path.parent / entry.after))
        if (early := serve.early(entry, self.run.path.parent)) is not None:
            if early[1]:
                raise Over("stopped", early[0])
            self._say(f"waits {early[0]}")
            self._step_back()
            return None
        return entry

    def _ask_about(self, ahead: Run) -> None:
        """Have the run that this one follows say how it is where it is: one on hosts is not lost as
        its process here was killed. Taken up again it is below this process: if we end first, that
        of whoever looks next is."""
        if self._ahead_on is None:
            self._ahead_on = Followed(ahead)
        self._ahead_on(ahead.state())

    def _look(self) -> leases.Leases | None:
        """Look at the line once. If it is the run's turn, take the devices, and get it ready for
        its start; returns their leases. Raises NotYet, Over, OSError, NoAnswer."""
        entry, now = self._due(), time.monotonic()
        if entry is None:
            return None
        inventory = self.devices.find(entry)
        self._stand(entry)
        folder = paths.leases_folder()
        stamp = leases.stamp(folder), entry
        if not self.devices.reading and stamp == self._stamp and now - self._looked < _ANEW:
            return None
        self._stamp, self._looked = stamp, now
        decision = self._decide(entry, read=False)
        if isinstance(decision, Wait):
            self.devices.stop_reading()
        elif not entry.cpu:
            self.devices.read()
            decision = self._decide(entry, read=self.devices.reading)
        if isinstance(decision, Start) and (entry.cpu or self.devices.reading):
            with contextlib.ExitStack() as taken:
                chosen: list[Device] = []
                with leases.alone(folder):
                    decision = self._settled(entry, self._decide(entry, read=not entry.cpu))
                    if isinstance(decision, Start):
                        chosen = [d for d in map(inventory.find, decision.devices) if d is not None]
                        taken.enter_context(leases.take(
                            folder, chosen, self.run.id, entry.share,
                            gives_way=start.room_within(self.run.require_plan().spec)))
                        self._step_back()
                if chosen:
                    self._get_ready(entry, chosen)
                    return taken.pop_all()
        if isinstance(decision, Wait) and decision.reason != SETTLING:
            self._free_since = None
        self._say(f"waits {decision.reason}" if isinstance(decision, Wait) else waiting.FIRST)
        return None

    def _settled(self, entry: Entry, decision: Start | Wait) -> Start | Wait:
        """The decision; of a run that has made room only once nothing else has kept it from its
        start for run.give_way_back: who has just ended a run may be about to begin the next."""
        plan = self.run.plan()
        if self._room is None or plan is None or isinstance(decision, Wait):
            return decision
        now = time.monotonic()
        self._free_since = self._free_since or now
        free = now - self._free_since >= plan.spec.run.give_way_back
        return decision if free else Wait(SETTLING)

    # --- the line ------------------------------------------------------------------------------

    def _decide(self, own: Entry, *, read: bool) -> Start | Wait:
        """What becomes of the run, by the leases and the line as they are now. Raises OSError."""
        return decide(self.queue, self.run.id, own, self.devices, read=read)

    def _ahead(self, own: Entry, holders: Mapping[str, leases.Holder]
               ) -> Iterator[tuple[str, Entry]]:
        return ahead_of(self.queue, self.run.id, own, holders)

    def _stand(self, entry: Entry) -> None:
        """Have a file that says to other users what the run waits for, and since when."""
        about = asdict(read_record(_Place, asdict(entry) | {
            "run": self.run.id, "queue": str(self.queue)}))
        if self._file is not None and about == self._about:
            return
        folder = paths.leases_folder()
        # The same for each supervisor of this run: whoever goes on with it has its place.
        name = f"{int(entry.submitted * 1e9):019d}-{zlib.crc32(os.fsencode(self.run.path)):08x}"
        with leases.alone(folder):
            if self._file is not None:
                self._file.close()
            self._file, self._about = leases.wait(folder, about, name), about

    def _step_back(self) -> None:
        """Stand in the line no longer, and let the driver alone."""
        self.devices.stop_reading()
        if self._file is not None:
            self._file.close()
            self._file = None

    # --- its turn has come ---------------------------------------------------------------------

    def _get_ready(self, entry: Entry, devices: Sequence[Device]) -> None:
        """Check and plan the run for these devices, in the folder of its code, write that down, and
        leave the line. Raises NotYet, Over, OSError."""
        run = self.run
        with self._starting(", ".join(d.label for d in devices)):
            spec = from_dict(attempts.read_spec(run))
            spec = replace(spec, devices=replace(
                spec.devices, ids=[d.id for d in devices], pick=None, free_gib=None))
            asked = spec
            folder, spec = submitted.place_of(run, spec, entry)
            with telling(f"{folder}: can't be entered"):
                os.chdir(folder)
            ready = prepare(spec, cwd=folder, in_turn=run.id, near=Path(entry.folder or folder),
                            in_sweep=entry.sweep is not None)
        # What is kept names the files where they were submitted: a resume takes them as they are.
        plan = self._planned(entry, replace(ready, spec=replace(ready.spec, task=asked.task)),
                             copy=folder)
        if why := start.blocked(plan, again_on_them=bool(self.state.attempts)):
            log.info("%s", why)
            raise NotYet("for devices that others took meanwhile")
        if entry.give_way:
            waiting.write(run.path, replace(entry, begin=None), waiting.PLACE)
        waiting.leave(run.path)

    @contextlib.contextmanager
    def _starting(self, where: str) -> Iterator[None]:
        """Its turn has come, and it is planned for `where`: a UserError there is Over, or NotYet if
        waiting helps; a HostProblem is for who can ask another machine."""
        log.info("its turn has come: it starts on %s", where)
        self._say(f"starts on {where}", at_once=True)
        try:
            disk_room.require(self.run.path)
        except UserError as err:
            raise NotYet(f"for room on the disk: {err}") from None
        try:
            yield
        except HostProblem:
            raise
        except UserError as err:
            if isinstance(err, SpecError) and all(p.key.startswith(_PASSING) for p in err.problems):
                raise NotYet(f"as it could not start: {err}") from None
            first = str(err).splitlines()[0] if str(err) else "it could not be started"
            raise Over("failed", f"it could not start when its turn came: {first}",
                       Cause(str(err))) from None
        finally:
            os.chdir("/")
            probe.drop()  # nothing of ours may look like a process of the run

    def _planned(self, entry: Entry, ready: Prepared, copy: Path | None = None) -> LaunchPlan:
        """Write down what starts. `copy`: the folder of its code, which may be the one in which it
        was submitted. Returns its plan. Raises OSError."""
        run, before = self.run, self.run.plan()
        folder = entry.folder or run.cwd()
        plan = replace(ready.plan, id=run.id, cwd=folder,
                       copy=str(copy) if copy is not None and copy != Path(folder) else None,
                       origin=before.origin if before is not None else None)
        write_inside(run.path, "spec.toml", to_toml(ready.spec))
        write_json_inside(run.path, "plan.json", plan.to_dict())
        environment.note(run, plan, ready.inventory, Kept(entry.code, entry.root))
        return plan

    # --- what is told --------------------------------------------------------------------------

    def _say(self, reason: str, *, at_once: bool = False) -> None:
        """Have the state give this reason, though not anew all the time."""
        reason += f"; it {self._room}" if self._room is not None else ""
        now = time.monotonic()
        if reason == self.state.reason or (not at_once and now - self._said_at < _SAID):
            return
        self.state, self._said_at = replace(self.state, reason=reason), now
        try:
            self.run.write_state(self.state, settled=False)
        except OSError as err:
            log.error("state.json can't be written: %s", err)

    def _try_later(self, why: str) -> None:
        """Have others go first for a while."""
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


class Devices:
    """The devices that one run may get: which there are, and which are free.

    What the leases tell costs nothing. The driver is read only while asked to, as a reading keeps a
    process of its own: see `discover.readings`."""

    def __init__(self) -> None:
        self.inventory: Inventory | None = None
        self._searched = -math.inf
        self._readings: Iterator[tuple[Sample, ...]] | None = None
        self._recent: tuple[Snapshot, ...] = ()

    @property
    def reading(self) -> bool:
        """Whether the driver is being read, which waits by itself."""
        return self._readings is not None

    def find(self, entry: Entry) -> Inventory:
        """All devices of the kind that the run waits for, also those that this process's
        environment hides: other runs wait for them, and may have come first."""
        known, now = self.inventory, time.monotonic()
        if known is not None and (now - self._searched < FIND_AGAIN or (
                known.devices and all(map(known.find, (*entry.ids, *entry.within))))):
            return known
        self._searched = now
        self.stop_reading()
        hidden = {variable: os.environ.pop(variable) for name in registry.BACKENDS
                  for variable in registry.load(name).variables if variable in os.environ}
        try:
            self.inventory = cpu_slots() if entry.cpu else discover()
        finally:
            os.environ.update(hidden)
            probe.drop()
        return self.inventory

    def read(self) -> None:
        """Wait for the driver's next reading. Raises NoAnswer."""
        assert self.inventory is not None
        if self._readings is None:
            self._readings = readings(self.inventory.source, self.inventory.devices, start.TIMEOUT,
                                      asked_to_end, INTERVAL)
        if (samples := next(self._readings, None)) is None:
            self._readings = None
        else:
            self._recent = (*self._recent,
                            Snapshot(time.time(), samples))[-availability.READINGS:]

    def stop_reading(self) -> None:
        """Let the driver alone, and forget what it said."""
        if close := getattr(self._readings, "close", None):
            close()
        self._readings, self._recent = None, ()

    def now(self, holders: Mapping[str, leases.Holder], *, read: bool) -> dict[str, DeviceNow]:
        """The devices as they are now. Not `read`: as far as the leases tell, which for CPU slots
        is all: on a busy machine a run would wait for ever."""
        assert self.inventory is not None
        states = availability.judge_all(self._recent, {}) if read else {}
        found = {}
        for device in self.inventory.devices:
            sample = self._recent[-1].of(device.id) if read else None
            if (holder := holders.get(leases.key(device))) is not None:
                why = f"is held by {holder}"
            elif not read or states[device.id].free:
                why = ""
            else:
                why = f"is not free: {states[device.id].reason}"
            found[device.id] = DeviceNow(
                device, why, not read or (sample is not None and sample.problem is None),
                device.memory_total if not read else
                None if sample is None else availability.free_memory(sample))
        return found

    def choose(self, count: int, ids: Sequence[str]) -> Sequence[str] | None:
        """The best `count` of these devices, which are free or may be shared; None if they do not
        go together, as a GPU and a slice."""
        if not self._recent:
            return ids[:count]
        try:
            return [d.id for d in availability.freest(count, self._recent, {}, among=ids)]
        except TooFew:
            return None
