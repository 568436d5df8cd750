"""`python -m gpu_engine.queue.over_hosts RUN_DIR LOCK_FD`: a run that waits for devices of any of
several machines. Started by `launching.launcher.supervise`.

The first such run of this user's line watches the machines; the others stand behind it, whatever
they take. Once one machine has enough, the run is planned for it and started there, as one that a
person starts on hosts, and this process holds it together (`remote/run/span.py`). It has left the
line when its ranks are started: if somebody else took the devices meanwhile, it waits on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpu_engine.code import submitted
from gpu_engine.common.errors import TooFew, UserError
from gpu_engine.devices import leases
from gpu_engine.launching.launcher import Prepared
from gpu_engine.queue.wait import INTERVAL, NotYet, Over, Waiter
from gpu_engine.remote.reach import hosts
from gpu_engine.remote.reach.call import ask
from gpu_engine.remote.reach.protocol import Remove, Removed
from gpu_engine.remote.reach.watcher import Watcher
from gpu_engine.remote.run import freest, parts
from gpu_engine.remote.run import prepare as preparing
from gpu_engine.remote.run.link import Link
from gpu_engine.remote.run.parts import Part
from gpu_engine.remote.run.span import Span
from gpu_engine.runs import attempts, waiting
from gpu_engine.runs.folder import EXIT_CODES, Run
from gpu_engine.runs.waiting import BEHIND, Entry
from gpu_engine.spec.read import from_dict
from gpu_engine.supervisor.children import STOPS, asked_to_end

AVOIDED = 60.0
"""Seconds for which a machine that could not start a run is passed over."""


class HostWaiter(Waiter):
    """Waits for the turn of one run. Its leases are empty: its host has them."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._watcher: Watcher | None = None
        self._since = 0.0
        """Monotonic seconds since when the machines are watched."""
        self._refused: dict[str, tuple[float, str]] = {}
        """By host until when it is passed over, monotonic seconds, and why."""

    def _pause(self) -> bool:
        # Nobody is reaped: the processes that are the ways to hosts are waited for elsewhere.
        return signal.sigtimedwait(STOPS, INTERVAL) is not None

    def _step_back(self) -> None:
        if self._watcher is not None:
            threading.Thread(target=self._watcher.close, daemon=True).start()
            self._watcher = None

    def _look(self) -> leases.Leases | None:
        begun = [p for p in parts.read(self.run.path) if p.attempt >= self.state.attempt]
        if begun:  # a process before this one may have had it started
            return self._begin(begun[0])
        if (entry := self._due()) is None:
            return None
        if any(self._ahead(entry, {})):
            self._say(f"waits {BEHIND}")
            self._step_back()
            return None
        try:
            spec, asked = from_dict(attempts.read_spec(self.run)), hosts.meant_by(entry.hosts)
        except UserError as err:
            raise NotYet(f"as {err}") from None
        spec = replace(spec, devices=replace(spec.devices, pick=entry.count))
        if self._watcher is None:
            self._watcher, self._since = Watcher(freest.INTERVAL), time.monotonic()
        for host in asked:
            self._watcher.watch(host)
        names, now = {host.name for host in asked}, time.monotonic()
        seen = [machine for machine in self._watcher.seen if machine.host.name in names]
        if not freest.settled(seen) and now - self._since < freest.PATIENCE:
            return None
        try:
            choice = freest.choose(seen, spec, cpu=entry.cpu, behind=True, refused={
                host: why for host, (until, why) in self._refused.items() if until > now})
        except TooFew as err:
            self._say(f"waits for {entry.text}: {str(err).partition('; ')[2]}")
            return None
        self._step_back()
        try:
            part = self._plan(entry, choice)
            if asked_to_end():
                raise Over("stopped", "stopped before its ranks started")
            return self._begin(part)
        except NotYet as err:
            self._refused[choice.host] = time.monotonic() + AVOIDED, str(err)
            raise

    def _plan(self, entry: Entry, choice: freest.Choice) -> Part:
        """What the chosen machine is told. Raises NotYet, Over, OSError."""
        run, before = self.run, parts.read(self.run.path)
        with self._starting(str(choice.where)):
            spec = freest.on_chosen(from_dict(attempts.read_spec(run)), choice)
            folder = Path(entry.folder or run.cwd())
            if spec.run.sync != "none":
                folder, spec = submitted.place_of(run, spec, entry)
            ready = Prepared(*(preparing.prepare_again(run, spec, "newest") if before
                               else preparing.prepare(spec, cwd=folder)))
        part = replace(ready.parts[0], attempt=max(
            self.state.attempt, 0, *(p.attempt + 1 for p in before)))
        self.state = replace(self.state, attempt=part.attempt)
        self._planned(entry, replace(ready, plan=replace(ready.plan, chosen=choice.sentence)),
                      folder)
        parts.write_instead(run.path, [part])
        return part

    def _begin(self, part: Part) -> leases.Leases:
        """Have it started there. Returns as soon as its ranks are, or whoever holds the run
        together has to see to it. Raises NotYet, OSError."""
        run, news = self.run, threading.Event()
        link = Link(run.path, part, run.require_plan().spec.run.log_mb << 20, news)
        link.start()
        while not (link.over or link.part.problem or asked_to_end()) and (
                link.state is None or link.state.state in ("queued", "starting")):
            news.wait(0.2)
            news.clear()
        link.give_up()
        link.join()
        cause = link.state.cause if link.state is not None else None
        if link.refused or (cause is not None and cause.taken):
            if part.resume:  # what it has from attempts before stays
                self.state = replace(self.state, attempt=part.attempt + 1)
                parts.write(run.path, replace(link.part, resume=True))
            else:
                with contextlib.suppress(UserError):
                    ask(parts.host_of(run.path, part), Remove(link.part.run, part.key), Removed)
                parts.drop(run.path, part)
            raise NotYet(f"as {part.host} could not start it: "
                         f"{link.refused or (cause and cause.message)}")
        parts.write(run.path, link.part)
        waiting.leave(run.path)
        return leases.Leases()


def main(argv: Sequence[str]) -> int:
    run, lock = Run(Path(argv[1])), int(argv[2])
    os.set_inheritable(lock, False)  # ours alone: an ssh that kept it would look like us
    os.umask(0o077)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    try:
        state = run.state() if HostWaiter(run).take_turn() is None else Span(run).hold()
        code = EXIT_CODES[state.state]
    except Exception:
        logging.exception("the process that holds the run together failed")
        code = 1
    logging.shutdown()
    os._exit(code)  # threads may still wait for a host


if __name__ == "__main__":
    sys.exit(main(sys.argv))
