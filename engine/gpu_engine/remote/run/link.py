"""The way to one host for as long as one attempt lasts: told to start, followed, reached again when
the connection breaks, however often."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gpu_engine.common.errors import UserError
from gpu_engine.remote.reach import protocol
from gpu_engine.remote.reach.call import ASK, Call, Cut, Refused, Unreachable, ask
from gpu_engine.remote.reach.hosts import Host
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


class Link(threading.Thread):
    """Keeps what is known of `part` until its run has ended or it was told to give up; sets `news`
    whenever that changes."""

    def __init__(self, run: Path, part: Part, log_limit: int, news: threading.Event, *,
                 others: bool = False, mirror: type[Mirror] = Mirror) -> None:
        """`others`: another host can be told instead. One that is not reached to be told is then
        as one that refuses."""
        super().__init__(name=f"link {part.host}", daemon=True)
        self.part = replace(part, problem=None, since=None)
        """The part with what is known of it now; nobody else changes it meanwhile."""
        self.state: State | None = None
        """How the run there is, as it was told last."""
        self.unheard: str | None = None
        """Why nothing is recorded there of its ranks, which may go on; None: it is."""
        self.refused: str | None = None
        """Why the host will not do it: it can't be started, or is not there any more."""
        self.over = False
        """Whether it was refused, or has ended and all its files are here."""
        self._run, self._others = run, others
        self._mirror = mirror(run, part, log_limit)
        self._news = news
        self._following: Call | None = None
        self._given_up = threading.Event()
        self._wake = threading.Event()
        self._asked_to_stop: bool | None = None
        """Whether it was asked to stop, and if so now."""
        self.told_to_stop = False
        """Whether the host has answered that it was."""
        self._begun = part.run is not None and not part.resume

    def stop(self, *, now: bool) -> None:
        """Ask the run there to stop, as soon as it can be reached. Does not wait."""
        self._asked_to_stop = now
        self._wake.set()
        threading.Thread(target=self._ask_to_stop, daemon=True).start()

    def give_up(self) -> None:
        """No more is wanted from there; what runs there goes on."""
        self._given_up.set()
        self._wake.set()
        following = self._following
        if following is not None:
            following.close()

    def run(self) -> None:
        """Until it is over."""
        pause = _PAUSE
        while not self._given_up.is_set():
            began = time.monotonic()
            try:
                self._serve(parts.host_of(self._run, self.part))
                return
            except Refused as err:
                self._refuse(err.reason)
                return
            except UserError as err:  # it can't be reached, or hosts.toml not be read, just now
                reason = err.reason if isinstance(err, Unreachable) else str(err)
                if self._others and not self._begun and not self.part.asked:
                    self._refuse(reason)
                    return
            except protocol.BadMessage as err:
                reason = f"what came from there is none of an agent's: {err}"
            except OSError as err:
                reason = f"its files can't be written here: {err.strerror or err}"
            except Exception:
                log.exception("%s", self.part.host)
                reason = "this program failed; see supervisor.log"
            finally:
                self._following = None
            if self._given_up.is_set():
                return
            self._note(problem=reason, since=self.part.since or time.time())
            if time.monotonic() - began > _ALONE:
                pause = _PAUSE
            self._wake.wait(pause)
            self._wake.clear()
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _serve(self, host: Host) -> None:
        """Until all is done there. Raises Unreachable, Refused, BadMessage, OSError."""
        if not self._begun:
            stopped = self._asked_to_stop is not None and self.part.run is None
            if stopped and not self.part.asked:
                self._refuse("stopped before it started")
                return
            self._begin(host, only_ask=stopped)
        part = self.part
        assert part.run is not None
        words = [w for at in self._mirror.at() for w in ("--at", ":".join(map(str, at)))]
        words += [w for rank in part.ranks for w in ("--rank", str(rank))]
        with Call(host, "follow", part.run, "--json", "--node", str(part.node), *words
                  ) as self._following:
            self._note(problem=None, since=None, heard=time.time())
            if self._asked_to_stop is not None:
                self._ask_to_stop(host)
            while not self._given_up.is_set():
                data = self._following.read(None)
                if isinstance(data, dict) and data.get("kind") == "piece":
                    self._mirror.append(protocol.typed(data, protocol.Piece))
                    continue
                answer = protocol.typed(data, protocol.Told)
                if answer.attempt >= part.attempt:
                    self.state, self.unheard = answer, answer.silence
                    self._note(state=answer.state, attempt=answer.attempt, heard=time.time())
                if answer.kind == "ended":
                    if self.state is None:
                        self._refuse("the attempt did not begin there")
                    self.over = True
                    self._news.set()
                    return

    def _begin(self, host: Host, *, only_ask: bool) -> None:
        part = self.part
        try:
            answer = begun(host, self._run, part, only_ask=only_ask)
        except Cut:
            self._note(asked=True)
            raise
        self._begun = True
        self._note(run=answer.id, path=answer.path, resume=False)

    def _ask_to_stop(self, host: Host | None = None) -> None:
        """Where it can't be reached, it is asked when it is again."""
        following, run = self._following, self.part.run
        if following is None or run is None or self._asked_to_stop is None:
            return
        try:
            stop(host or parts.host_of(self._run, self.part), run, now=self._asked_to_stop,
                 seconds=ANSWERS)
            self.told_to_stop = True
        except Refused:
            return
        except UserError:
            following.close()  # nobody has noticed yet that the way is cut

    def _refuse(self, why: str) -> None:
        log.error("%s: %s", self.part.host, why)
        self.refused, self.over = why, True
        self._news.set()

    def _note(self, **changes: Any) -> None:
        """What is new of the part."""
        news = [f"{key}: {value}" for key, value in changes.items()
                if key != "heard" and getattr(self.part, key) != value]
        if news:
            log.info("%s: %s", self.part.host, ", ".join(news))
            self.part = replace(self.part, **changes)
        self._news.set()


def begun(host: Host, run: Path, part: Part, *, only_ask: bool = False) -> protocol.Started:
    """The run of `part`, of the run in this folder, that its host has begun by now, or has if it is
    `only_ask`ed. Raises Unreachable, Refused."""
    order = asdict(replace(part, spec={})) | {  # which may hold secrets, and others see arguments
        "of": run.name, "machine": socket.gethostname(), "only_ask": only_ask}
    return ask(host, protocol.Started, "run", "-", "--detach", "--part", json.dumps(order),
               folders=part.folders or ("~",), content=json.dumps(part.spec).encode())


def stop(host: Host, run: str, *, now: bool, seconds: float = ASK) -> None:
    """Ask the run there to stop, however often. Raises Unreachable, Refused."""
    ask(host, protocol.Stopped, "stop", run, "--no-wait", *["--now"] * now,
        seconds=seconds)
