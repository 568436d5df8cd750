"""A run on devices of one of several machines, from the inside: it waits for them, or was planned
for one and starts at once (`Entry.at_once`), in the process that then holds it together.

The first such run of this user's line watches the machines; the others stand behind it, whatever
they take. Once one machine has enough, the run is planned for it and started there, as one that a
person starts on hosts, and this process holds it together (`remote/run/span.py`). It has left the
line when its ranks are started. Whatever fails before that on one machine has the next one taken;
where none takes it, it waits on, or has failed if it was to start at once. Only a machine that may
have begun it, as the connection ended while it was told to, is asked until it answers.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

from gpu_engine.code import submitted
from gpu_engine.common.errors import HostProblem, TooFew, UserError
from gpu_engine.devices import leases
from gpu_engine.launching.launcher import Prepared
from gpu_engine.queue.wait import INTERVAL, NotYet, Over, Waiter
from gpu_engine.remote.reach import hosts
from gpu_engine.remote.reach.watcher import Watcher
from gpu_engine.remote.run import freest, parts, removal
from gpu_engine.remote.run import prepare as preparing
from gpu_engine.remote.run.link import Link
from gpu_engine.remote.run.parts import Part
from gpu_engine.runs import attempts, waiting
from gpu_engine.runs.folder import Cause, Run
from gpu_engine.runs.waiting import BEHIND, Entry
from gpu_engine.spec.read import from_dict
from gpu_engine.supervisor.children import STOPS, asked_to_end

AVOIDED = 60.0
"""Seconds for which a machine that could not start a run is passed over."""

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
        """By host why it is passed over."""
        self._refused_at: dict[str, float] = {}
        """Since when, monotonic seconds."""

    def _pause(self) -> bool:
        # Nobody is reaped: the processes that are the ways to hosts are waited for elsewhere.
        return signal.sigtimedwait(STOPS, INTERVAL) is not None

    def _step_back(self) -> None:
        if self._watcher is not None:
            threading.Thread(target=self._watcher.close, daemon=True).start()
            self._watcher = None

    def _try_later(self, why: str) -> None:
        if self._at_once:
            raise Over("failed", f"it could not start, {why}", Cause(why))
        super()._try_later(why)

    def _look(self) -> leases.Leases | None:
        begun = [p for p in parts.read(self.run.path) if p.attempt >= self.state.attempt]
        if begun:  # a process before this one may have had it started
            return self._begin(begun[0])
        if (entry := self._due()) is None:
            return None
        if not self._at_once and any(self._ahead(entry, {})):
            self._say(f"waits {BEHIND}")
            self._step_back()
            return None
        try:
            spec, asked = from_dict(attempts.read_spec(self.run)), hosts.meant_by(entry.hosts)
        except UserError as err:
            raise NotYet(f"as {err}") from None
        spec = replace(spec, devices=replace(  # it may have been planned for one already
            spec.devices, ids=list(entry.ids) or None, pick=entry.count,
            free_gib=entry.free and entry.free / (1 << 30)))
        if self._watcher is None:
            self._watcher, self._since = Watcher(freest.INTERVAL), time.monotonic()
        for host in asked:
            self._watcher.watch(host)
        names, now = {host.name for host in asked}, time.monotonic()
        seen = [machine for machine in self._watcher.seen if machine.host.name in names]
        if not freest.settled(seen) and now - self._since < freest.PATIENCE:
            return None
        for host in tuple(self._refused):
            if now - self._refused_at.setdefault(host, now) > AVOIDED:
                del self._refused_at[host], self._refused[host]
        cpu = freest.on_cpu(seen) if entry.cpu is None else entry.cpu
        try:
            _, part = freest.take(seen, spec, lambda choice: self._plan(entry, choice),
                                  self._refused, cpu=cpu, behind=not self._at_once)
        except (TooFew, HostProblem) as err:
            if self._at_once:
                raise Over("failed", str(err), Cause(str(err))) from None
            self._say(f"waits for {entry.text}: {str(err).partition('; ')[2]}")
            return None
        self._step_back()
        if asked_to_end():
            raise Over("stopped", "stopped before its ranks started")
        return self._begin(part)

    def _plan(self, entry: Entry, choice: freest.Choice) -> Part:
        """What the chosen machine is told. Raises HostProblem, NotYet, Over, OSError."""
        run, before = self.run, parts.read(self.run.path)
        with self._starting(str(choice.where)):
            spec = freest.on_chosen(from_dict(attempts.read_spec(run)), choice)
            folder = Path(entry.folder or run.cwd())
            if spec.run.sync != "none":
                folder, spec = submitted.place_of(run, spec, entry)
            ready = Prepared(*(preparing.prepare_again(run, spec, "newest") if before
                               else preparing.prepare(spec, cwd=folder,
                                                      in_sweep=entry.sweep is not None)))
        part = replace(ready.parts[0], attempt=max(
            self.state.attempt, 0, *(p.attempt + 1 for p in before)))
        self.state = replace(self.state, attempt=part.attempt)
        self._planned(entry, replace(ready, plan=replace(ready.plan, chosen=choice.sentence)),
                      folder)
        parts.write_instead(run.path, [part])
        return part

    def _begin(self, part: Part) -> leases.Leases | None:
        """Have it started there. Returns as soon as its ranks are, or whoever holds the run
        together has to see to it; None: it has not begun there. Raises OSError."""
        run, news = self.run, threading.Event()
        link = Link(run.path, part, run.require_plan().spec.run.log_mb << 20, news, others=True)
        # Before it is: should this process end meanwhile, the next one does not know whether.
        parts.write(run.path, replace(part, asked=True))
        link.start()
        while not (link.over or asked_to_end()) and (
                link.state is None or link.state.state in ("queued", "starting")):
            news.wait(0.2)
            news.clear()
            if link.part.problem:
                known = link.part.run is not None and not link.part.resume
                self._say(f"{part.host} {'has' if known else 'may have'} begun it, and is asked "
                          f"until it answers: {link.part.problem}")
        link.give_up()
        link.join()
        cause = link.state.cause if link.state is not None else None
        why = link.refused or (cause.message if cause is not None and cause.taken else None)
        begun = link.part.asked or (link.part.run is not None and not link.part.resume)
        if (why or not begun) and (part.resume or self._gone(link.part)):
            if part.resume:  # what it has from attempts before stays
                self.state = replace(self.state, attempt=part.attempt + 1)
                parts.write(run.path, replace(link.part, resume=True))
            else:
                parts.drop(run.path, part)
            if asked_to_end():
                raise Over("stopped", "stopped before its ranks started")
            self._refused[part.host] = f"could not start it: {why}"
            log.warning("%s could not start it: %s", part.host, why)
            self._say(f"{'looks for another host' if self._at_once else 'waits'} as {part.host} "
                      f"could not start it: {why}", at_once=True)
            return None
        if why and not asked_to_end():
            self._say(f"{part.host} may have begun it, and is asked until it answers: {why}")
            return None
        parts.write(run.path, link.part)
        waiting.leave(run.path)
        return leases.Leases()

    def _gone(self, part: Part) -> bool:
        """Have what its host has made of a run that it could not start removed. Returns whether
        nothing of it can be going on there."""
        try:
            removal.there(parts.host_of(self.run.path, part), part)
        except UserError:
            return not part.asked
        return True


