"""The way to one host for as long as one attempt lasts: told to start, followed, reached again when
the connection breaks, however often."""

from __future__ import annotations

import logging
import socket
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpu_engine.common.errors import UserError
from gpu_engine.remote.reach import protocol
from gpu_engine.remote.reach.call import Call, Refused, Unreachable, ask
from gpu_engine.remote.reach.protocol import BadMessage
from gpu_engine.remote.reach.records import Host
from gpu_engine.remote.run import parts
from gpu_engine.remote.run.mirror import Mirror
from gpu_engine.remote.run.parts import Part
from gpu_engine.runs.state import State

_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
"""Seconds before it is tried again, doubled each time."""
ANSWERS = 10.0
"""Seconds in which a host that can be reached says that it was told to stop a run."""
_ALONE = 20.0
"""Seconds that a way lasted, after which the pauses begin anew."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Status:
    """What is known of a host's part in this attempt."""

    run: str | None = None
    """The run's id there, once it has begun, and its folder."""
    path: str | None = None
    state: State | None = None
    """How it is, as it was told last."""
    over: bool = False
    """Whether it has ended and all its files are here."""
    unheard: str | None = None
    """Why nothing is recorded there of its ranks, which may go on; None: it is."""
    refused: str | None = None
    """Why the host will not do it: it can't be started, or is not there any more."""
    broken: str | None = None
    """Why it can't be reached now, and since when, unix seconds."""
    since: float | None = None


class Link(threading.Thread):
    """Keeps the `status` of `part` until its run has ended or it was told to give up; sets `news`
    whenever that changes."""

    def __init__(self, run: Path, part: Part, log_limit: int, news: threading.Event) -> None:
        super().__init__(name=f"link {part.host}", daemon=True)
        self.part = part
        self.status = Status()
        self._run = run
        self._mirror = Mirror(run, part, log_limit)
        self._news = news
        self._following: Call | None = None
        self._over = threading.Event()
        self._wake = threading.Event()
        self._asked_to_stop: bool | None = None
        """Whether it was asked to stop, and if so now."""
        self._id = part.run
        self._begun = part.run is not None and not part.resume

    def stop(self, *, now: bool) -> None:
        """Ask the run there to stop, as soon as it can be reached. Does not wait."""
        self._asked_to_stop = now
        self._wake.set()
        threading.Thread(target=self._ask_to_stop, daemon=True).start()

    def give_up(self) -> None:
        """No more is wanted from there; what runs there goes on."""
        self._over.set()
        self._wake.set()
        following = self._following
        if following is not None:
            following.close()

    def run(self) -> None:
        """Until it is over."""
        pause = _PAUSE
        while not self._over.is_set():
            began = time.monotonic()
            try:
                self._serve(parts.host_of(self._run, self.part))
                return
            except Refused as err:
                self._set(refused=err.reason)
                return
            except UserError as err:  # it can't be reached, or hosts.toml not be read, just now
                reason = err.reason if isinstance(err, Unreachable) else str(err)
            except BadMessage as err:
                reason = f"what came from there is none of an agent's: {err}"
            except OSError as err:
                reason = f"its files can't be written here: {err.strerror or err}"
            except Exception:
                log.exception("%s", self.part.host)
                reason = "this program failed; see supervisor.log"
            finally:
                self._following = None
            if self._over.is_set():
                return
            self._set(broken=reason, since=self.status.since or time.time())
            if time.monotonic() - began > _ALONE:
                pause = _PAUSE
            self._wake.wait(pause)
            self._wake.clear()
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _serve(self, host: Host) -> None:
        """Until all is done there. Raises Unreachable, Refused, BadMessage, OSError."""
        if not self._begun:
            if self._asked_to_stop is not None and self._id is None:
                self._set(refused="stopped before it started")
                return
            self._begin(host)
        assert self._id is not None
        with Call(host, protocol.Follow(self._id, self._mirror.at(), self.part.ranks,
                                        self.part.node)) as self._following:
            self._set(broken=None, since=None)
            if self._asked_to_stop is not None:
                self._ask_to_stop(host)
            for answer in self._following:
                if self._over.is_set():
                    return
                if isinstance(answer, protocol.Piece):
                    self._mirror.append(answer)
                elif isinstance(answer, protocol.Told) \
                        and answer.state.attempt >= self.part.attempt:
                    self._set(state=answer.state, unheard=answer.unheard)
                elif isinstance(answer, protocol.Done):
                    if self.status.state is not None:
                        self._set(over=True)
                    else:
                        self._set(refused="the attempt did not begin there")
                    return

    def _begin(self, host: Host) -> None:
        part = self.part
        if part.resume and self._id is not None:
            request = protocol.Resume(self._id, part.spec, part.attempt, part.checkpoint,
                                      part.fresh)
        else:
            request = protocol.Start(part.spec, part.key, part.folders, part.trying, part.attempt,
                                     part.checkpoint, self._run.name, socket.gethostname())
        answer = ask(host, request, protocol.Started)
        self._id, self._begun = answer.run, True
        self._set(run=answer.run, path=answer.path)

    def _ask_to_stop(self, host: Host | None = None) -> None:
        """Where it can't be reached, it is asked when it is again."""
        following, run = self._following, self._id
        if following is None or run is None or self._asked_to_stop is None:
            return
        try:
            ask(host or parts.host_of(self._run, self.part),
                protocol.Stop(run, self._asked_to_stop), seconds=ANSWERS)
        except Refused:
            return
        except UserError:
            following.close()  # nobody has noticed yet that the way is cut

    def _set(self, **changes: Any) -> None:
        self.status = replace(self.status, **changes)
        self._news.set()
