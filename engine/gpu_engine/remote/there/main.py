"""Reads a request, answers it, and ends.

What it started goes on: runs have supervisors of their own. Nothing but answers may reach standard
output, so its descriptor is kept by `Out` alone, and whatever prints goes nowhere.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from gpu_engine.common.errors import UserError, telling
from gpu_engine.common.procs import readable
from gpu_engine.remote.reach import protocol
from gpu_engine.remote.reach.protocol import Answer, BadMessage

_MACHINE = (protocol.Hello, protocol.Watch, protocol.Listen, protocol.Reach)
"""Answered by the functions of their names in `machine`; the others by those in `runs`, which are
imported when they are asked for."""
_GO_ON = (protocol.Watch, protocol.Listen, protocol.Follow)


class Out:
    """Where answers go."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def send(self, answer: Answer) -> None:
        """Raises OSError where nobody is there any more."""
        line = protocol.pack(answer)
        if len(line) > protocol.LONGEST:
            line = protocol.pack(protocol.Failed(
                f"the answer has {len(line):,} bytes; {protocol.LONGEST:,} may be"))
        self.write(line)

    def write(self, line: bytes) -> None:
        """All of it."""
        view = memoryview(line)
        while view:
            view = view[os.write(self._fd, view):]


def serve(word: str) -> int:
    """Answer the request on standard input. `word` is said first, so that whoever reads knows where
    our lines begin. Returns the exit code."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.environ["PATH"] = search_path(os.environ.get("PATH", os.defpath))
    fd, null = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.set_inheritable(fd, False)
    out = Out(fd)
    out.write(f"\n{protocol.MARK} {word}\n".encode())
    os.dup2(null, 1)
    os.dup2(null, 2)
    try:
        signal.alarm(int(protocol.SILENCE))  # ends us, should nothing come
        line = sys.stdin.buffer.readline(protocol.LONGEST + 1)
        signal.alarm(0)
        if line:
            _answer(out, line)
    except OSError:  # nobody is there any more
        return 1
    return 0


def _answer(out: Out, line: bytes) -> None:
    """Raises OSError where nobody is there any more."""
    try:
        request = protocol.request(line)
        if isinstance(request, _GO_ON):
            threading.Thread(target=_end_with_input, daemon=True).start()
        module = import_module("gpu_engine.remote.there."
                               + ("machine" if isinstance(request, _MACHINE) else "runs"))
        getattr(module, type(request).__name__.lower())(out, request)
    except BadMessage as err:
        out.send(protocol.Failed(f"a request that is none: {err}"))
    except BrokenPipeError:
        raise
    except (UserError, OSError) as err:
        out.send(protocol.Failed(str(err)))
    except Exception:  # noqa: BLE001 - told to whoever asked
        out.send(protocol.Failed(traceback.format_exc()[-8192:]))


def _end_with_input() -> None:
    """End as soon as nobody is there any more."""
    while readable(0, protocol.SILENCE) and os.read(0, 4096):
        continue
    os._exit(0)


def search_path(path: str) -> str:
    """Where a run's command is looked for: ssh gives a short PATH, without the environment that
    holds this interpreter. If that has torch it comes first, as if it were activated; else last."""
    own = str(Path(sys.executable).parent)
    others = [p for p in path.split(os.pathsep) if p and p != own]
    first = importlib.util.find_spec("torch") is not None
    return os.pathsep.join([own, *others] if first else [*others, own])


def enter(folders: Sequence[str]) -> Path:
    """Go into the first of `folders` that exists, as if what follows were typed there. Raises
    UserError."""
    path = first(folders)
    if path is None:
        raise UserError(f"there is no folder {folders[0]} there; name the one that has your files "
                        "(folder in hosts.toml)")
    with telling(f"{path}: can't be entered"):
        os.chdir(path)
    return Path.cwd()


def first(folders: Sequence[str]) -> Path | None:
    """The first of `folders` that exists, as an absolute path; the home where none is named."""
    found = (Path(os.path.expandvars(f)).expanduser() for f in folders or ("~",))
    return next((path.absolute() for path in found if path.is_dir()), None)
