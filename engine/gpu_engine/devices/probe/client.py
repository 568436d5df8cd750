"""The caller's side of the process that asks the driver (`probe.child`).

Nothing here waits longer than it is told to, and nothing waits for that process to end.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from gpu_engine.devices.backends import registry
from gpu_engine.devices.probe.messages import (
    HEAD,
    Broken,
    Discover,
    Found,
    Reply,
    Request,
    Watch,
    WatchBus,
    pack,
)
from gpu_engine.devices.records import Device, Inventory

_START = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from gpu_engine.devices.probe.child import main; main()"
)
_SHARE = 0.75
"""Part of the time for finding devices that a single GPU may take."""


class Gone(Exception):
    """The probe has ended; the text says why where that is known."""


class Probe:
    """One such process. Used by one thread at a time; only `close` may come from another."""

    def __init__(self) -> None:
        package_root = str(Path(__file__).resolve().parents[3])
        self._process = subprocess.Popen(
            # -P: no module of the folder somebody happens to stand in.
            [sys.executable, "-P", "-c", _START, package_root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # never between the panel's own characters
            start_new_session=True,  # Ctrl+C in the terminal is not meant for it
            bufsize=0,
        )
        self._buffer = bytearray()
        self.problem: str | None = None
        """Why it gave up, in its own words."""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, request: Request) -> None:
        """Raises `Gone`. Requests are small: the pipe takes them without waiting."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(pack(request))
        except (OSError, ValueError):
            raise Gone(self._why())

    def receive(self, timeout: float) -> Reply | None:
        """The next reply, or None when none came in time. Raises `Gone`."""
        assert self._process.stdout is not None
        end = time.monotonic() + timeout
        while True:
            message = self._unpack()
            if message is not None:
                if isinstance(message, Broken):
                    self.problem = message.problem
                return message
            left = max(0.0, end - time.monotonic())
            try:
                ready = select.select([self._process.stdout], [], [], left)[0]
                if not ready:
                    return None
                piece = os.read(self._process.stdout.fileno(), 1 << 20)
            except (OSError, ValueError):  # closed by `close` in another thread
                raise Gone(self._why())
            if not piece:
                raise Gone(self._why())
            self._buffer += piece

    def close(self) -> None:
        """Kill it, without waiting for its end: inside the driver no signal may reach it."""
        with contextlib.suppress(OSError):
            self._process.kill()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        _leave(self._process)

    def ended(self) -> bool:
        """Whether the process is dead."""
        return self._process.poll() is not None

    def _unpack(self) -> Reply | None:
        if len(self._buffer) < HEAD.size:
            return None
        end = HEAD.size + HEAD.unpack_from(self._buffer)[0]
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[HEAD.size:end])
        del self._buffer[:end]
        return pickle.loads(body)

    def _why(self) -> str:
        if self.problem:
            return self.problem
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.05)
        code = self._process.returncode
        if code is not None and code < 0:
            return f"the process that reads the GPUs was ended by signal {-code}"
        return "the process that reads the GPUs has ended"


_left: list[subprocess.Popen[bytes]] = []
_lock = threading.Lock()
_spare: Probe | None = None


def _leave(process: subprocess.Popen[bytes]) -> None:
    """Keep a killed process until it is seen dead, so that it stays no zombie and Python does not
    warn of it."""
    with _lock:
        _left.append(process)
        for old in list(_left):
            if old.poll() is not None:
                if old.stdout is not None:
                    old.stdout.close()
                _left.remove(old)


def take() -> Probe:
    """A probe for the caller alone: the one that `discover` left behind while it lives, as
    waking the GPUs a second time takes seconds without persistence mode."""
    global _spare
    with _lock:
        probe, _spare = _spare, None
    if probe is not None:
        if not probe.ended():
            return probe
        probe.close()
    return Probe()


def _put_back(probe: Probe) -> None:
    global _spare
    with _lock:
        old, _spare = _spare, probe
    if old is not None:
        old.close()


def discover(name: str, environ: Mapping[str, str], timeout: float) -> Inventory:
    """The devices of the backend `name`, asked in another process; `environ` is what narrows them
    (`Backend.variables`). Never raises, and returns within about `timeout` seconds."""
    nothing = registry.load(name).nothing
    try:
        probe = take()
    except OSError as error:
        return nothing(environ, f"the process that reads the GPUs could not be started: {error}")
    try:
        probe.send(Discover(registry.BACKENDS[name], environ, _SHARE * timeout))
        reply = probe.receive(timeout)
    except Gone as gone:
        probe.close()
        return nothing(environ, str(gone))
    if isinstance(reply, Found):
        _put_back(probe)
        return reply.inventory
    probe.close()
    if isinstance(reply, Broken):
        return nothing(environ, reply.problem)
    return nothing(
        environ,
        f"the driver did not answer in {timeout:g} s (it may hang: see dmesg; its own tools "
        f"would wait as well)",
    )


def watch(
    probe: Probe,
    name: str,
    devices: tuple[Device, ...],
    interval: float,
    patience: float,
) -> None:
    """Have it look at `devices` of the backend `name` at each interval from now on, and send a
    `Looked` each time. Raises `Gone`.

    A device that does not answer within `patience` seconds is said to be late, and the others
    wait for it no longer.
    """
    probe.send(Watch(registry.BACKENDS[name], devices, interval, patience))


def watch_bus(probe: Probe, device_ids: frozenset[str]) -> None:
    """Have it read the bus rates of these devices, and of no other, from now on. Raises `Gone`."""
    probe.send(WatchBus(device_ids))
