"""What this machine is, its devices, and how they are: the same snapshots as on its own screen."""

from __future__ import annotations

import getpass
import os
import platform
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from gpu_engine import __version__
from gpu_engine.common import paths, procs
from gpu_engine.devices import availability, leases
from gpu_engine.devices.discover import cpu_slots, discover
from gpu_engine.devices.records import Snapshot
from gpu_engine.devices.sampler import Sampler, take_several
from gpu_engine.interpreters import choose
from gpu_engine.launching.preflight import is_loopback
from gpu_engine.remote.reach.protocol import VERSION, Devices, Hello, Looked, Watch, Welcome
from gpu_engine.remote.there import place
from gpu_engine.remote.there.wire import Asked
from gpu_engine.runs import disk_room

_QUICKEST = 0.25


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
    came_by = os.environ.get("SSH_CONNECTION", "").split()
    first = came_by[2:3] if len(came_by) == 4 and not is_loopback(came_by[2]) else []
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    own = [a.address for name, found in sorted(psutil.net_if_addrs().items()) if name in up
           for a in found if a.family == socket.AF_INET and not is_loopback(a.address)]
    return tuple(dict.fromkeys([*first, *own]))[:16]


def _place() -> str:
    """The folder that runs are kept in, by disk and number: however it is called, it is one."""
    home = paths.home()
    for folder in (home, *home.parents):
        found = _identity(folder)
        if found is not None:
            return f"{found}:{home.relative_to(folder)}"
    return str(home)


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


def devices(asked: Asked, request: Watch) -> None:
    inventory = cpu_slots() if request.slots else discover()
    asked.send(Devices(inventory))
    if request.once:
        asked.send(_looked(take_several(inventory)))
        return
    interval = max(request.interval, _QUICKEST)
    with Sampler(inventory, runs_folder=paths.runs_folder(), interval=interval) as sampler:
        before: Snapshot | None = None
        while True:
            asked.pause(_QUICKEST / 2)
            newest = sampler.latest
            if newest is None or newest is before:
                continue
            before = newest
            asked.send(_looked(sampler.recent[-availability.READINGS:], newest))


def _looked(snapshots: Sequence[Snapshot], newest: Snapshot | None = None) -> Looked:
    held = leases.holders(paths.leases_folder())
    found = availability.judge_all(snapshots, held) if snapshots else {}
    return Looked(newest or snapshots[-1], found)
