"""What this machine is."""

from __future__ import annotations

import getpass
import os
import platform
import socket
import sys
import time
from pathlib import Path

from gpu_engine import __version__
from gpu_engine.common import paths, procs
from gpu_engine.interpreters import choose
from gpu_engine.remote.reach.protocol import VERSION, Hello, Welcome
from gpu_engine.remote.there import place
from gpu_engine.remote.there.wire import Asked
from gpu_engine.runs import disk_room


def hello(asked: Asked, request: Hello) -> None:
    taken = choose.of_ranks(None, place.first(request.folders))
    asked.send(Welcome(
        protocol=VERSION, version=__version__, python=sys.executable,
        python_version=platform.python_version(), hostname=socket.gethostname(), user=_user(),
        home=str(paths.home()), folder=os.getcwd(), boot=procs.boot_id(),  # noqa: PTH109
        network=_identity(Path("/proc/self/ns/net")), place=_place(), addresses=addresses(),
        torch=taken.seen.build if taken.seen is not None else None,
        interpreter=taken.python, lacking=taken.problem.message if taken.problem else None,
        disk_free=disk_room.of(paths.runs_folder()).free, clock=time.time(),
        package=str(Path(__file__).parents[2])))


def addresses() -> tuple[str, ...]:
    """This machine's addresses for others, the one that ssh came in by first."""
    import psutil

    from gpu_engine.launching.addresses import is_loopback

    came_by = os.environ.get("SSH_CONNECTION", "").split()
    first = came_by[2:3] if len(came_by) == 4 and not is_loopback(came_by[2]) else []
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    own = [a.address for name, found in sorted(psutil.net_if_addrs().items()) if name in up
           for a in found if a.family == socket.AF_INET and not is_loopback(a.address)]
    return tuple(dict.fromkeys([*first, *own]))[:16]


def _place() -> str:
    """The folder that runs are kept in, by disk and number: however it is called, it is one."""
    folder = paths.home()
    while True:
        try:
            found = folder.stat()
        except OSError:
            if folder.parent == folder:
                return str(paths.home())
            folder = folder.parent
            continue
        below = str(paths.home().relative_to(folder))
        return f"{found.st_dev}:{found.st_ino}:{below}"


def _identity(path: Path) -> str | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return f"{found.st_dev}:{found.st_ino}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
