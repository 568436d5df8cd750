"""What this machine is, its devices and how they are, and whether others reach it."""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from gpu_engine import __version__
from gpu_engine.code import store
from gpu_engine.common import paths, procs
from gpu_engine.common.errors import telling
from gpu_engine.common.files import reason
from gpu_engine.common.ports import listener
from gpu_engine.devices import availability, leases
from gpu_engine.devices.discover import cpu_slots, discover
from gpu_engine.devices.records import Inventory
from gpu_engine.devices.sampler import Sampler
from gpu_engine.interpreters import choose
from gpu_engine.launching.preflight import is_loopback
from gpu_engine.remote.reach import protocol
from gpu_engine.remote.there.main import Out, first
from gpu_engine.runs import disk_room

_QUICKEST = 0.25
_LONGEST = 30.0


def hello(out: Out, request: protocol.Hello) -> None:
    code = None
    if request.code is not None:
        place, there = store.place_of(request.code)
        if there:
            store.mark_used(place)
        code = protocol.CodeState(str(place), there)
    out.send(_welcome(request.folders, cpu_slots() if request.slots else discover(), code))


def _welcome(folders: tuple[str, ...], inventory: Inventory, code: protocol.CodeState | None
             ) -> protocol.Welcome:
    taken = choose.of_ranks(None, first(folders) or Path.home())
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return protocol.Welcome(
        protocol=protocol.VERSION, version=__version__, python=sys.executable,
        python_version=platform.python_version(), hostname=socket.gethostname(), user=user,
        home=str(paths.home()), folder=os.getcwd(), boot=procs.boot_id(),  # noqa: PTH109
        network=_identity(Path("/proc/self/ns/net")), place=_place(),
        addresses=_addresses(), torch=taken.seen.build if taken.seen is not None else None,
        interpreter=taken.python, lacking=taken.problem.message if taken.problem else None,
        disk_free=disk_room.of(paths.runs_folder()).free, package=str(Path(__file__).parents[2]),
        inventory=inventory, code=code, clock=time.time())


def _addresses() -> tuple[str, ...]:
    """This machine's addresses for others, the one that ssh came in by first."""
    came_by = os.environ.get("SSH_CONNECTION", "").split()
    chief = came_by[2:3] if len(came_by) == 4 and not is_loopback(came_by[2]) else []
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    own = [a.address for name, found in sorted(psutil.net_if_addrs().items()) if name in up
           for a in found if a.family == socket.AF_INET and not is_loopback(a.address)]
    return tuple(dict.fromkeys([*chief, *own]))[:16]


def _place() -> str:
    """The folder that runs are kept in, by disk and number: however it is called, it is one."""
    home = paths.home()
    found = ((_identity(folder), folder) for folder in (home, *home.parents))
    return next((f"{known}:{home.relative_to(folder)}" for known, folder in found if known),
                str(home))


def _identity(path: Path) -> str | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return f"{found.st_dev}:{found.st_ino}"


def watch(out: Out, request: protocol.Watch) -> None:
    """The same snapshots as on its own screen."""
    inventory = discover()
    out.send(_welcome(request.folders, inventory, None))
    interval = max(request.interval, _QUICKEST)
    with Sampler(inventory, runs_folder=paths.runs_folder(), interval=interval) as sampler:
        before = None
        while True:
            time.sleep(_QUICKEST / 2)
            newest = sampler.latest
            if newest is not None and newest is not before:
                before = newest
                recent, folder = sampler.recent[-availability.READINGS:], paths.leases_folder()
                out.send(protocol.Looked(
                    newest, availability.judge_all(recent, leases.holders(folder))
                    if recent else {},
                    sum(file.live and bool(file.said.get("cpu")) == inventory.is_cpu
                        for file in leases.waiting(folder))))


# --- the way between machines, before any rank waits on it ----------------------------------------

def listen(out: Out, request: protocol.Listen) -> None:
    with telling(f"port {request.port} can't be listened on"):
        sock = listener(request.port)
    with sock:
        out.send(protocol.Listening(sock.getsockname()[1]))
        sock.settimeout(0.1)
        end = time.monotonic() + min(request.seconds, _LONGEST)
        while time.monotonic() < end:
            with contextlib.suppress(TimeoutError):
                other, _ = sock.accept()
                other.close()


def reach(out: Out, request: protocol.Reach) -> None:
    """All addresses at once: one behind a firewall keeps us waiting to the end."""
    def tried(address: str) -> str | None:
        try:
            socket.create_connection((address, request.port),
                                     min(request.seconds, _LONGEST)).close()
        except TimeoutError:
            return "no answer: a firewall may be between"
        except OSError as err:
            return reason(err)
        return None

    addresses = request.addresses[:16]
    with ThreadPoolExecutor(16) as pool:
        out.send(protocol.Reached(dict(zip(addresses, pool.map(tried, addresses), strict=True))))
