"""A run on devices of one of several machines, from the inside: it waits for them, or was planned
for one and starts at once (`Entry.at_once`), in the process that then holds it together.

By the rule of `turns` those that come first keep of each machine what they could use, or what they
are planned for. A run that can have nothing before that is known does not even ask the machines.
Once one machine has enough, the run is planned for it and started there, as one that a person
starts on hosts, and this process holds it together (`remote/run/span.py`). It has left the line
when its ranks are started. Whatever fails before that on one machine has the next one taken; where
none takes it, it waits on, or has failed if it was to start at once. Only a machine that may have
begun it, as the connection ended while it was told to, is asked until it answers.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpu_engine.code import submitted
from gpu_engine.common.errors import HostProblem, TooFew, UserError
from gpu_engine.devices import availability, leases
from gpu_engine.launching.launcher import Prepared
from gpu_engine.queue import turns
from gpu_engine.queue.turns import DeviceNow
from gpu_engine.queue.wait import INTERVAL, NotYet, Over, Waiter
from gpu_engine.remote.reach import hosts
from gpu_engine.remote.reach.call import Refused
from gpu_engine.remote.reach.watcher import HostSeen, Watcher
from gpu_engine.remote.run import freest, link, parts, removal
from gpu_engine.remote.run import prepare as preparing
from gpu_engine.remote.run.parts import Part
from gpu_engine.runs import attempts, waiting
from gpu_engine.runs.folder import Cause, Run
from gpu_engine.runs.waiting import BEHIND, Entry
from gpu_engine.spec.host_names import HostDevices, parse_all
from gpu_engine.spec.read import from_dict
from gpu_engine.supervisor.children import STOPS, asked_to_end, wait_for_signal

ASKED = 30.0
"""Seconds in which each of several machines has to say that it has begun, as the others hold their
devices meanwhile."""
ENDS = 10.0
"""Seconds in which what was begun there has ended."""

log = logging.getLogger(__name__)


class HostWaiter(Waiter):
    """Waits for the turn of one run. Its leases are empty: its host has them."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        entry = waiting.read(run.path)
        self._at_once = entry is not None and entry.at_once
        self.first = "starts" if self._at_once else waiting.FIRST
        self._watcher: Watcher | None = None
        self._since = 0.0
        """Monotonic seconds since when the machines are watched."""
        self._refused: dict[str, str] = {}
        """By host why it is passed over, until none is left."""

    def _pause(self) -> bool:
        # Nobody is reaped: the processes that are the ways to hosts are waited for elsewhere.
        return wait_for_signal(STOPS, INTERVAL) is not None

    def _step_back(self) -> None:
        if self._watcher is not None:
            threading.Thread(target=self._watcher.close, daemon=True).start()
            self._watcher = None

    def _try_later(self, why: str) -> None:
        if self._at_once:
            raise Over("failed", f"it could not start, {why}", Cause(why))
        super()._try_later(why)

    def _look(self) -> leases.Leases | None:
        told = [p for p in parts.read(self.run.path) if p.attempt >= self.state.attempt]
        if told and (entry := waiting.read(self.run.path)) is not None:
            # A process before this one may have had it started, or not let go everywhere.
            whole = 1 if entry.count else len(entry.hosts)
            return self._begin(told) if len(told) == whole else self._let_go(told, "")
        if (entry := self._due()) is None:
            return None
        ahead = [] if self._at_once else [
            (name, _as_planned(Run(self.run.path.parent / name), other))
            for name, other in self._ahead(entry, {})]
        try:
            # Once for all that name the same, as the members of a sweep do.
            named = {names: _named(names) for names in {entry.hosts, *(e.hosts for _, e in ahead)}}
            spec, asked = from_dict(attempts.read_spec(self.run)), hosts.meant_by(entry.hosts)
        except UserError as err:
            raise NotYet(f"as {err}") from None
        first = next((run for run, other in ahead if turns.surely_behind(
            entry, named[entry.hosts], other, named[other.hosts])), None)
        if first is not None:
            self._say(f"waits {BEHIND}: {first} is the first that could use what it waits for")
            self._step_back()
            return None
        spec = replace(spec, devices=replace(  # it may have been planned for one already
            spec.devices, hosts=list(entry.hosts), ids=None, pick=entry.count or None,
            free_gib=entry.free and entry.free / (1 << 30)))
        if self._watcher is None:
            self._watcher, self._since = Watcher(freest.INTERVAL), time.monotonic()
        for host in asked:
            self._watcher.watch(host)
        names = {host.name for host in asked}
        seen = [machine for machine in self._watcher.seen if machine.host.name in names]
        if not freest.settled(seen) and time.monotonic() - self._since < freest.PATIENCE:
            return None
        cpu = freest.on_cpu(seen) if entry.cpu is None else entry.cpu
        kept = {m.host.name: _kept_for(
            [(run, other, named[other.hosts][m.host.name]) for run, other in ahead
             if m.host.name in named[other.hosts]], m, cpu) for m in seen}
        try:
            _, told = freest.take(seen, spec, lambda choice: self._plan(entry, choice),
                                  self._refused, cpu=cpu, behind=not self._at_once, kept=kept)
        except (TooFew, HostProblem) as err:
            if self._at_once:
                raise Over("failed", str(err), Cause(str(err))) from None
            if isinstance(err, HostProblem):
                raise NotYet(f"as it could not start: {err}") from None
            why = f"for {entry.text}: {str(err).partition('; ')[2]}"
            if self._refused:
                self._refused.clear()
                raise NotYet(why) from None
            self._say(f"waits {why}")
            return None
        self._step_back()
        if asked_to_end():
            raise Over("stopped", "before its ranks started")
        return self._begin(told)

    def _plan(self, entry: Entry, choice: freest.Choice) -> list[Part]:
        """What the chosen machines are told. Raises HostProblem, NotYet, Over, OSError."""
        run, before = self.run, parts.read(self.run.path)
        with self._starting(" and ".join(map(str, choice.where))):
            spec = freest.on_chosen(from_dict(attempts.read_spec(run)), choice)
            asked, folder = spec.task, Path(entry.folder or run.cwd())
            if spec.run.sync != "none":
                folder, spec = submitted.place_of(run, spec, entry)
            ready = Prepared(*(preparing.prepare_again(run, spec, "newest") if before
                               else preparing.prepare(spec, cwd=folder,
                                                      in_sweep=entry.sweep is not None)))
        number = max(self.state.attempt, 0, *(p.attempt + 1 for p in before))
        told = [replace(part, attempt=number) for part in ready.parts]
        self.state = replace(self.state, attempt=number)
        self._planned(entry, replace(ready, spec=replace(ready.spec, task=asked), plan=replace(
            ready.plan, chosen=choice.sentence)))
        parts.write_instead(run.path, told)
        return told

    def _begin(self, told: Sequence[Part]) -> leases.Leases | None:
        """Have it started there, on several hosts in the order of their names: of two runs that
        want the same, one is refused before it has anything. Returns as soon as its ranks are, or
        whoever holds the run together has to see to it; None: it has not begun. Raises NotYet,
        Over, OSError."""
        begun = list[Part]()
        for part in sorted(told, key=lambda part: part.host):
            known, why = self._begin_there(part, alone=len(told) == 1)
            if why is not None:
                others = [p for p in told if p.host not in (part.host, *(b.host for b in begun))]
                return self._let_go([*begun, replace(known, resume=part.resume), *others],
                                    f"{part.host} could not start it: {why}")
            begun.append(known)
        for part in begun:
            parts.write(self.run.path, part)
        waiting.leave(self.run.path)
        return leases.Leases()

    def _begin_there(self, part: Part, *, alone: bool) -> tuple[Part, str | None]:
        """What is known of the part once its ranks are started; or why they are not."""
        run, news, began = self.run, threading.Event(), time.monotonic()
        way = link.Link(run.path, part, run.require_plan().spec.run.log_mb << 20, news, others=True)
        # Before it is: should this process end meanwhile, the next one does not know whether.
        parts.write(run.path, replace(part, asked=True))
        way.start()
        while not (way.over or asked_to_end()) and (
                way.state is None or way.state.state in ("queued", "starting")) \
                and (alone or not way.part.problem or time.monotonic() - began < ASKED):
            news.wait(0.2)
            news.clear()
            if way.part.problem:
                known = way.part.run is not None and not way.part.resume
                self._say(f"{part.host} {'has' if known else 'may have'} begun it, and is asked "
                          f"until it answers: {way.part.problem}")
        way.give_up()
        way.join()
        cause = way.state.cause if way.state is not None else None
        why = way.refused or (cause.message if cause is not None and cause.taken else None)
        begun = way.part.asked or (way.part.run is not None and not way.part.resume)
        if not alone:
            why = why or way.part.problem or ("stopped" if asked_to_end() else None)
        return way.part, why or (None if begun else "stopped")

    def _let_go(self, told: Sequence[Part], why: str) -> leases.Leases | None:
        """Have nothing of the attempt go on anywhere, as it could not begin on all hosts. Returns
        and raises as `_begin`."""
        run = self.run
        left = [part.host for part in told if not self._gone(part)]
        for part in told:
            if part.host not in left and part.resume:  # what it has from attempts before stays
                self.state = replace(self.state, attempt=part.attempt + 1)
                parts.write(run.path, replace(part, resume=True))
            elif part.host not in left and (len(told) > 1 or not left):
                parts.drop(run.path, part)
        if left and asked_to_end():  # whoever holds the run together says so
            waiting.leave(run.path)
            return leases.Leases()
        if left:
            self._say(f"{' and '.join(left)} may have begun it, and is asked until it answers"
                      + (f": {why}" if why else ""))
            return None
        if asked_to_end():
            raise Over("stopped", "before its ranks started")
        log.warning("%s", why)
        if (entry := waiting.read(run.path)) is None or not entry.count:
            raise NotYet(f"as {why or 'it could not begin on all hosts'}")
        self._refused[told[0].host] = why.partition(" ")[2]
        self._say(f"{'looks for another host' if self._at_once else 'waits'} as {why}",
                  at_once=True)
        return None

    def _gone(self, part: Part) -> bool:
        """Have what its host has made of a run that could not start ended, and removed. Returns
        whether nothing of it can be going on there."""
        try:
            host = parts.host_of(self.run.path, part)
            with contextlib.suppress(Refused):  # it has not begun there
                if part.run or part.asked:
                    there = part.run or link.begun(host, self.run.path, part, only_ask=True).id
                    link.stop(host, there, "--now")
            end = time.monotonic() + ENDS
            while not part.resume:
                try:
                    removal.there(host, part)
                    break
                except Refused:  # it has not ended yet
                    if time.monotonic() > end:
                        return False
                    time.sleep(INTERVAL)
        except UserError:
            return not part.asked
        return True


def _as_planned(run: Run, entry: Entry) -> Entry:
    """What a run ahead waits for; one that starts, only for what it is planned for."""
    told = [p for p in parts.read(run.path) if p.attempt >= run.state().attempt]
    return replace(entry, count=0, hosts=tuple(
        str(HostDevices(part.host, tuple(from_dict(part.spec).devices.ids or ())))
        for part in told)) if told else entry


def _named(entries: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The machines that are meant, and the devices that are named of each; none: all. Raises
    UserError."""
    ids = {e.host: e.ids for e in parse_all(entries)}
    return {host.name: ids.get(host.name, ()) for host in hosts.meant_by(entries)}


def _kept_for(ahead: Sequence[tuple[str, Entry, tuple[str, ...]]], machine: HostSeen, cpu: bool
              ) -> set[str]:
    """The devices of this machine that those `ahead` could use or take: runs, what they wait for,
    and the devices of it that they name."""
    if machine.inventory is None or machine.snapshot is None:
        return set()
    inventory, free = machine.inventory, freest.free_on(machine)
    now = {s.device.id: DeviceNow(s.device, "" if s.device.id in free else "is not free",
                                  s.problem is None, availability.free_memory(s))
           for s in machine.snapshot.samples}
    line = [turns.Request(run, replace(entry, cpu=cpu if entry.cpu is None else entry.cpu, ids=(
                () if entry.count else tuple(d.id for d in map(inventory.find, ids or now) if d))))
            for run, entry, ids in ahead]
    # Which of the free ones it takes does not matter to who has the rest: it starts at once.
    return {*turns.kept_for(line, now, choose=lambda count, able: able[:count])}
