"""The way to one host for as long as one attempt lasts: told to start, followed, reached again when
the connection breaks, however often; and its files, appended to the run's folder here from wherever
they have got to.

What a file has here is the beginning of what it has there, so its size says from where to go on.
A log that was cut there is set aside here as well. What comes is bounded: a host can fill neither
this disk nor a file that is not its own.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import threading
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gpu_engine.common import units
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import file_inside, open_inside
from gpu_engine.events.paths import DEVICES, inside
from gpu_engine.remote.reach import files, protocol
from gpu_engine.remote.reach.call import ASK, Call, Cut, Refused, ask, reason
from gpu_engine.remote.reach.files import At
from gpu_engine.remote.reach.hosts import Host
from gpu_engine.remote.reach.protocol import BadMessage, Piece, Told
from gpu_engine.remote.run import parts
from gpu_engine.remote.run.parts import Part
from gpu_engine.runs import disk_room
from gpu_engine.runs.folder import Run
from gpu_engine.runs.state import State

_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
"""Seconds before it is tried again, doubled each time."""
ANSWERS = 10.0
"""Seconds in which a host that can be reached says that it was told to stop a run."""
_ALONE = 20.0
"""Seconds that a way lasted, after which the pauses begin anew."""
_CHECKED = 256
"""Bytes at the end of what is here that are compared with what is there."""
MOST_EVENTS = 8 << 30
"""Bytes of one rank's events."""
FLOOR = 512 << 20
"""Free bytes below which nothing of a host is written any more."""

log = logging.getLogger(__name__)


class Mirror:
    """The files of `part`'s host in the run folder `run`. `log_limit`: bytes of a log before it is
    set aside, as the spec has it."""

    def __init__(self, run: Path, part: Part, log_limit: int) -> None:
        self.run, self._part = run, part
        self._limit = log_limit
        self._bases = {f"ranks/{b.rank:05d}.jsonl": b.bytes for b in part.bases}
        """Bytes at the beginning of a file that came from another host, before this one had that
        rank."""

    def at(self) -> list[At]:
        """How far each file is here."""
        names = [f"node{self._part.node}.log", files.SUPERVISOR, DEVICES]
        names += [f"ranks/{rank:05d}{suffix}" for rank in self._part.ranks
                  for suffix in (".jsonl", ".log")]
        found = list[At]()
        for name in names:
            with suppress(OSError), file_inside(*inside(self._path(name))) as file:
                size = os.fstat(file.fileno()).st_size
                own = max(size - self._bases.get(name, 0), 0)
                checked = min(own, _CHECKED)
                found.append(At(name, own, checked, zlib.crc32(
                    os.pread(file.fileno(), checked, size - checked))))
        return found

    def append(self, piece: Piece) -> None:
        """Append what came. Raises BadMessage for what the host has no business sending, or that
        does not go on where the file here ends; OSError where it can't be written."""
        path, data = self._path(piece.name), piece.data
        free = disk_room.of(self.run).free
        if free is not None and free - len(data) < FLOOR:
            raise OSError(errno.ENOSPC, f"less than {units.size(FLOOR)} would be free on the disk "
                                        f"of {self.run}")
        if piece.start:
            self._begin_anew(path, piece.name)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        fd = open_inside(*inside(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            size = os.fstat(fd).st_size
            own = size - self._bases.get(piece.name, 0)
            if piece.offset != own:
                raise BadMessage(f"{piece.name}: bytes from {piece.offset:,} on, and {own:,} are "
                                 "here")
            # A supervisor over there looks at its logs once a second.
            most = MOST_EVENTS if files.is_events(piece.name) else 4 * self._limit + (64 << 20)
            if size + len(data) > most:
                raise BadMessage(f"{piece.name}: more than {most:,} bytes")
            try:
                while data:
                    data = data[os.write(fd, data):]
            except OSError:  # whole or not at all: the same bytes would come again behind half
                with suppress(OSError):
                    os.ftruncate(fd, size)
                raise
        finally:
            os.close(fd)

    def _path(self, name: str) -> Path:
        """Where the file is here. Raises BadMessage."""
        found = files.here(name, self._part.host, self._part.ranks, self._part.node)
        if found is None:
            raise BadMessage(f"a file that is none of its: {name[:80]!r}")
        return self.run / found

    def _begin_anew(self, path: Path, name: str) -> None:
        base = self._bases.get(name, 0)
        with suppress(FileNotFoundError):
            if base:
                with os.fdopen(open_inside(*inside(path), os.O_WRONLY), "wb") as file:
                    file.truncate(base)
            elif files.is_events(name):
                path.unlink()
            else:
                path.replace(path.with_name(path.name + ".1"))


class Link(threading.Thread):
    """Keeps what is known of `part` until its run has ended or it was told to give up; sets `news`
    whenever that changes."""

    def __init__(self, run: Path, part: Part, log_limit: int, news: threading.Event, *,
                 others: bool = False, only_ask: bool = False,
                 mirror: type[Mirror] = Mirror) -> None:
        """`others`: another host can be told instead. One that is not reached to be told is then
        as one that refuses. `only_ask`: nothing is begun there."""
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
        self._run, self._others, self._only_ask = run, others, only_ask
        self._mirror = mirror(run, part, log_limit)
        self._news = news
        self._following: Call | None = None
        self._given_up = threading.Event()
        self._wake = threading.Event()
        self._how: tuple[str, ...] | None = None
        """How it is to stop, as for `stop`; None: it is not."""
        self._told: tuple[str, ...] | None = None
        """The same, as the host has answered that it was told."""
        self._begun = part.run is not None and not part.resume

    @property
    def told_to_stop(self) -> bool:
        """Whether the host has answered what it was asked last."""
        return self._told is not None and self._told == self._how

    def stop(self, *how: str) -> None:
        """Ask the run there to stop, as soon as it can be reached. Does not wait."""
        self._how = how
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
                why = reason(err)
                if self._others and not self._begun and not self.part.asked:
                    self._refuse(why)
                    return
            except BadMessage as err:
                why = f"what came from there is none of an agent's: {err}"
            except OSError as err:
                why = f"its files can't be written here: {err.strerror or err}"
            except Exception:
                log.exception("%s", self.part.host)
                why = "this program failed; see supervisor.log"
            finally:
                self._following = None
            if self._given_up.is_set():
                return
            self._note(problem=why, since=self.part.since or time.time())
            if time.monotonic() - began > _ALONE:
                pause = _PAUSE
            self._wake.wait(pause)
            self._wake.clear()
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _serve(self, host: Host) -> None:
        """Until all is done there. Raises Unreachable, Refused, BadMessage, OSError."""
        if not self._begun:
            stopped = self._how is not None and self.part.run is None
            if stopped and not self.part.asked:
                self._refuse("stopped before it started")
                return
            try:
                answer = begun(host, self._run, self.part, only_ask=stopped or self._only_ask)
            except Cut:
                self._note(asked=True)
                raise
            self._begun = True
            self._note(run=answer.id, path=answer.path, resume=False)
        part = self.part
        assert part.run is not None
        words = [w for at in self._mirror.at() for w in ("--at", ":".join(map(str, at)))]
        words += [w for rank in part.ranks for w in ("--rank", str(rank))]
        with Call(host, "follow", part.run, "--json", "--node", str(part.node), *words
                  ) as self._following:
            self._note(problem=None, since=None, heard=time.time())
            self._ask_to_stop()
            while not self._given_up.is_set():
                data = self._following.read(None)
                if isinstance(data, dict) and data.get("kind") == "piece":
                    self._mirror.append(protocol.typed(data, Piece))
                    continue
                answer = protocol.typed(data, Told)
                if answer.attempt >= part.attempt:
                    self.state, self.unheard = answer, answer.silence
                    self._note(state=answer.state, attempt=answer.attempt, heard=time.time())
                if answer.kind == "ended":
                    if self.state is None:
                        self._refuse("the attempt did not begin there")
                    self.over = True
                    self._news.set()
                    return

    def _ask_to_stop(self) -> None:
        """If it is to be. Where it can't be reached, it is asked when it is again."""
        following, run, how = self._following, self.part.run, self._how
        if following is None or run is None or how is None:
            return
        try:
            stop(parts.host_of(self._run, self.part), run, *how, seconds=ANSWERS)
            self._told = how
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


def stop(host: Host, run: str, *how: str, seconds: float = ASK) -> None:
    """Ask the run there to stop, however often; `how`: "--now", or "--again" for a second stop.
    Raises Unreachable, Refused."""
    ask(host, protocol.Stopped, "stop", run, "--no-wait", *how, seconds=seconds)


def to_stop_text(run: Run, hosts: Sequence[str]) -> str:
    """What a stopped run says of hosts that could not be asked to stop."""
    return (f"{', '.join(hosts)} can't be reached: what runs there goes on until "
            f"gpu-engine stop {run.id} reaches it")
