"""The way to one host for as long as one attempt lasts: told to start, followed, reached again when
the connection breaks, however often."""

from __future__ import annotations

import logging
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpu_engine.common.errors import UserError
from gpu_engine.common.inbox import Inbox
from gpu_engine.remote.reach import protocol
from gpu_engine.remote.reach.channel import Channel, Refused, Unreachable, open_channel
from gpu_engine.remote.reach.protocol import BadMessage
from gpu_engine.remote.run import parts
from gpu_engine.remote.run.mirror import Mirror
from gpu_engine.remote.run.parts import Part
from gpu_engine.runs.state import State

_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
"""Seconds before it is tried again, doubled each time."""
_SILENT = 45.0
"""Seconds without a line from there after which a way is given up: three signs of life."""
ANSWERS = 10.0
"""Seconds in which a host that can be reached says that it was told to stop a run."""
_ALONE = 20.0
"""Seconds that a way lasted, after which the pauses begin anew."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Began:
    """The run there has begun."""

    host: str
    run: str
    path: str


@dataclass(frozen=True, slots=True)
class Told:
    """How it is; `over`: it has ended and all its files are here."""

    host: str
    state: State
    over: bool = False
    unheard: str | None = None
    """Why nothing is recorded there of its ranks, which may go on; None: it is."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The host will not do it: the run can't be started, or is not there any more."""

    host: str
    reason: str


@dataclass(frozen=True, slots=True)
class Broken:
    """It can't be reached now."""

    host: str
    reason: str


@dataclass(frozen=True, slots=True)
class Back:
    """It can be reached."""

    host: str


@dataclass(frozen=True, slots=True)
class NotKept:
    """What its ranks write is not kept here any more; they go on."""

    host: str
    reason: str


Report = Began | Told | Refusal | Broken | Back | NotKept


class Link(threading.Thread):
    """Reports on `part` into `reports`, until its run has ended or it was told to give up."""

    def __init__(self, run: Path, part: Part, log_limit: int,
                 reports: Inbox[Report]) -> None:
        super().__init__(name=f"link {part.host}", daemon=True)
        self.part = part
        self._run = run
        self._mirror = Mirror(run, part, log_limit)
        self._reports = reports
        self._way: Channel | None = None
        self._over = threading.Event()
        self._wake = threading.Event()
        self._asked_to_stop: bool | None = None
        """Whether it was asked to stop, and if so now."""
        self._id = part.run
        self._begun = part.run is not None and not part.resume

    def stop(self, *, now: bool) -> None:
        """Ask the run there to stop, as soon as it can be reached. Does not wait."""
        if self._asked_to_stop is None or (now and not self._asked_to_stop):
            self._asked_to_stop = now
            self._wake.set()
            threading.Thread(target=self._ask_to_stop, daemon=True).start()

    def give_up(self) -> None:
        """No more is wanted from there; what runs there goes on."""
        self._over.set()
        self._wake.set()
        way = self._way
        if way is not None:
            way.close()

    def run(self) -> None:
        """Until it is over."""
        pause = _PAUSE
        while not self._over.is_set():
            began = time.monotonic()
            try:
                with open_channel(parts.host_of(self._run, self.part)) as self._way:
                    self._report(Back(self.part.host))
                    if self._serve(self._way):
                        return
                reason = "the connection ended"
            except Unreachable as err:
                reason = err.reason
            except Refused as err:
                self._report(Refusal(self.part.host, err.reason))
                return
            except UserError as err:  # hosts.toml can't be read just now
                reason = str(err)
            except BadMessage as err:
                reason = f"what came from there is none of an agent's: {err}"
            except OSError as err:
                reason = f"its files can't be written here: {err.strerror or err}"
            except Exception:
                log.exception("%s", self.part.host)
                reason = "this program failed; see supervisor.log"
            finally:
                self._way = None
            if self._over.is_set():
                return
            self._report(Broken(self.part.host, reason))
            if time.monotonic() - began > _ALONE:
                pause = _PAUSE
            self._wake.wait(pause)
            self._wake.clear()
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _serve(self, way: Channel) -> bool:
        """Whether all is done there. Raises Unreachable, Refused, BadMessage, OSError."""
        if not self._begun:
            if self._asked_to_stop is not None and self._id is None:
                self._report(Refusal(self.part.host, "stopped before it started"))
                return True
            self._begin(way)
        assert self._id is not None
        if self._asked_to_stop is not None:
            self._ask_to_stop()
        stream = way.stream(protocol.Follow(
            self._id, self._mirror.at(), self.part.ranks, self.part.node,
            self._mirror.most_of_a_log()))
        state: State | None = None
        while not self._over.is_set():
            got = stream.next(1.0)
            if got is None:
                if time.monotonic() - way.heard > _SILENT:
                    way.close(f"nothing came for {_SILENT:.0f} s")
                continue
            if isinstance(got, protocol.Piece):
                self._mirror_piece(got)
            elif isinstance(got, protocol.Told):
                if got.state.attempt >= self.part.attempt:
                    state = got.state
                    self._report(Told(self.part.host, state, unheard=got.unheard))
            elif isinstance(got, protocol.Done):
                if state is not None:
                    self._report(Told(self.part.host, state, over=True))
                else:
                    self._report(Refusal(self.part.host, "the attempt did not begin there"))
                return True
        return True

    def _mirror_piece(self, piece: protocol.Piece) -> None:
        before = self._mirror.stopped
        pause = self._mirror.append(piece)
        if before is None and self._mirror.stopped is not None:
            self._report(NotKept(self.part.host, self._mirror.stopped))
        self._over.wait(min(pause, 1.0))  # the host notices that nobody reads, and waits too

    def _begin(self, way: Channel) -> None:
        part = self.part
        if part.resume and self._id is not None:
            request = protocol.Resume(self._id, part.spec, part.attempt, part.checkpoint,
                                      part.bring, part.fresh)
        else:
            request = protocol.Start(part.spec, part.key, part.folders, part.trying, part.attempt,
                                     part.checkpoint, part.bring, self._run.name,
                                     socket.gethostname())
        answer = way.ask(request, protocol.Started)
        self._id, self._begun = answer.run, True
        self._report(Began(self.part.host, answer.run, answer.path))

    def _ask_to_stop(self) -> None:
        """Where it can't be reached, it is asked when it is again."""
        way, run = self._way, self._id
        if way is None or run is None or not self._begun or self._asked_to_stop is None:
            return
        with suppress(Refused):
            try:
                way.ask(protocol.Stop(run, self._asked_to_stop), seconds=ANSWERS)
            except Unreachable:
                way.close(f"it did not answer for {ANSWERS:.0f} s")

    def _report(self, report: Report) -> None:
        self._reports.put(report)
