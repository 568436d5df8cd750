"""What this machine is, its devices and how they are, and whether others reach it."""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
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
from gpu_engine.runs import disk_room

_QUICKEST = 0.25
_LONGEST = 30.0
_PATIENCE = 5.0
"""The kernel sends a first packet that was lost again after 1 and 3 s (RFC 6298)."""


def welcome(inventory: Inventory, code: protocol.CodeState | None) -> protocol.Welcome:
    """What this machine is, with these devices."""
    taken = choose.of_ranks(None, Path.cwd())
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return protocol.Welcome(
        version=__version__, python=sys.executable,
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


def looks(interval: float, *, slots: bool = False, code: str | None = None
          ) -> Iterator[dict[str, object]]:
    """What this machine is, at once, and then its devices again and again, as on its own screen.
    `slots`: those of its processor, although it has GPUs. Raises UserError."""
    inventory = cpu_slots() if slots else discover()
    known = None
    if code is not None:
        place, there = store.place_of(code)
        if there:  # and is kept for a day from now on
            store.mark_used(place)
        known = protocol.CodeState(str(place), there)
    yield {"kind": "machine"} | msgspec.to_builtins(welcome(inventory, known))
    interval = max(interval, _QUICKEST)
    with Sampler(inventory, runs_folder=paths.runs_folder(), interval=interval) as sampler:
        before = None
        while True:
            time.sleep(_QUICKEST / 2)
            newest = sampler.latest
            if newest is not None and newest is not before:
                before = newest
                recent, folder = sampler.recent[-availability.READINGS:], paths.leases_folder()
                yield {"kind": "look"} | msgspec.to_builtins(protocol.Looked(
                    newest, availability.judge_all(recent, leases.holders(folder))
                    if recent else {},
                    sum(file.live and bool(file.said.get("cpu")) == inventory.is_cpu
                        for file in leases.waiting(folder))))


# --- the way between machines, before any rank waits on it ----------------------------------------

def listen(port: int) -> Iterator[dict[str, int]]:
    """The number of the port, 0: any free one, and half a minute in which others can try it."""
    with telling(f"port {port} can't be listened on"):
        sock = listener(port)
    with sock:
        yield {"port": sock.getsockname()[1]}
        sock.settimeout(0.1)
        end = time.monotonic() + _LONGEST
        while time.monotonic() < end:
            with contextlib.suppress(TimeoutError):
                other, _ = sock.accept()
                other.close()


def reach(addresses: tuple[str, ...], port: int) -> dict[str, str | None]:
    """Why the port can't be connected to at each address; None: it can. All at once: one behind a
    firewall keeps us waiting to the end."""
    def tried(address: str) -> str | None:
        try:
            socket.create_connection((address, port), _PATIENCE).close()
        except TimeoutError:
            return "no answer: a firewall may be between"
        except OSError as err:
            return reason(err)
        return None

    with ThreadPoolExecutor(16) as pool:
        return dict(zip(addresses, pool.map(tried, addresses), strict=True))
