"""Reads requests, has each answered by its verb in a thread of its own, and ends with its input.

What it started goes on: runs have supervisors of their own. Nothing but answers may reach standard
output, so its descriptor is kept by the wire alone, and whatever prints goes to standard error.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import sys
import threading
import traceback
from importlib import import_module
from pathlib import Path

from gpu_engine.common.errors import UserError
from gpu_engine.common.procs import readable
from gpu_engine.remote.reach import protocol
from gpu_engine.remote.reach.protocol import BadMessage, Request
from gpu_engine.remote.there.wire import Asked, Over, Wire

_VERBS = {
    protocol.Hello: "machine:hello", protocol.Watch: "machine:devices",
    protocol.Check: "start:check", protocol.Start: "start:start", protocol.Resume: "start:resume",
    protocol.Listen: "ports:listen", protocol.Reach: "ports:reach",
    protocol.Follow: "follow:follow", protocol.Stop: "runs:stop", protocol.Stacks: "runs:stacks",
    protocol.ListCheckpoints: "runs:listed", protocol.Read: "runs:read",
    protocol.Remove: "runs:remove", protocol.CompareCode: "code:compare",
    protocol.SendCode: "code:send", protocol.BuildCode: "code:build",
}
"""Request → the file and the function in it that answer; imported when it is first asked for."""
_PATIENCE = 1.0
"""Seconds that a request which was cancelled has to end, before the next is read."""
_MOST = 32
"""Requests at a time."""


def serve(word: str) -> int:
    """Answer until standard input ends. `word` is said first, so that whoever reads knows where
    our lines begin. Returns the exit code."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.environ["PATH"] = search_path(os.environ.get("PATH", os.defpath))
    out = os.dup(1)
    os.dup2(2, 1)
    os.set_inheritable(out, False)
    os.write(out, f"\n{protocol.MARK} {word}\n".encode())
    _Agent(Wire(out)).serve(sys.stdin.fileno())
    return 0


def search_path(path: str) -> str:
    """Where a run's command is looked for: ssh gives a short PATH, without the environment that
    holds this interpreter. If that has torch it comes first, as if it were activated; else last."""
    own = str(Path(sys.executable).parent)
    others = [p for p in path.split(os.pathsep) if p and p != own]
    first = importlib.util.find_spec("torch") is not None
    return os.pathsep.join([own, *others] if first else [*others, own])


class _Agent:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._asked: dict[int, Asked] = {}

    def serve(self, fd: int) -> None:
        rest = b""
        while readable(fd, protocol.SILENCE):
            got = os.read(fd, 1 << 16)
            if not got:
                return
            *lines, rest = (rest + got).split(b"\n")
            if len(rest) > protocol.LONGEST:
                return
            for line in lines:
                self._handle(line)

    def _handle(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            number, request = protocol.request(line)
        except BadMessage as err:
            self._wire.send(0, protocol.Failed(f"a request that is none: {err}"))
            return
        if isinstance(request, protocol.Cancel):
            asked = self._asked.pop(request.request, None)
            if asked is not None:
                asked.cancel(_PATIENCE)
        elif isinstance(request, protocol.Ping):
            self._wire.send(number, protocol.Done())
        elif len(self._asked) >= _MOST:
            self._wire.send(number, protocol.Failed(f"more than {_MOST} requests at a time"))
        else:
            asked = self._asked[number] = Asked(self._wire, number)
            threading.Thread(target=self._answer, args=(number, asked, request),
                             name=type(request).__name__, daemon=True).start()

    def _answer(self, number: int, asked: Asked, request: Request) -> None:
        try:
            file, _, verb = _VERBS[type(request)].partition(":")
            getattr(import_module(f"gpu_engine.remote.there.{file}"), verb)(asked, request)
        except Over:
            pass
        except (UserError, BadMessage, OSError) as err:
            self._fail(number, str(err))
        except Exception:  # noqa: BLE001 - told to whoever asked
            self._fail(number, traceback.format_exc()[-8192:])
        finally:
            self._asked.pop(number, None)
            asked.end()

    def _fail(self, number: int, message: str) -> None:
        with contextlib.suppress(OSError):  # nobody is there any more
            self._wire.send(number, protocol.Failed(message))
