"""Starting and using a probe, the process that calls the driver (`probe.child`).

Every wait here has a time limit, and nothing waits for that process to end.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import threading
import time
from collections.abc import Mapping

from gpu_engine.common.own_programs import own_program
from gpu_engine.common.readable import readable
from gpu_engine.devices.backends import registry
from gpu_engine.devices.probe.messages import HEAD, Broken, Discover, Found, Reply, Request, pack
from gpu_engine.devices.records import Inventory

_SHARE = 0.75
"""The share of the time limit for finding devices that a single GPU may take."""


class Gone(Exception):
    """The probe has ended. The text says why, as far as it is known."""


class Probe:
    """One probe. Only one thread may use it at a time, but `close` may be called from another."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            own_program("gpu_engine.devices.probe.child"),
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # it must not print into the panel's terminal
            start_new_session=True,  # Ctrl+C in the terminal must not end it
            bufsize=0,
        )
        self._buffer = bytearray()
        self.problem: str | None = None
        """Why it gave up, as it said itself."""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, request: Request) -> None:
        """Send a request; returns at once, as requests fit into the pipe. Raises `Gone`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(pack(request))
        except (OSError, ValueError):
            raise Gone(self._why())

    def receive(self, timeout: float) -> Reply | None:
        """The next reply; None if none comes within `timeout` seconds. Raises `Gone`."""
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
                if not readable(self._process.stdout.fileno(), left):
                    return None
                piece = os.read(self._process.stdout.fileno(), 1 << 20)
            except (OSError, ValueError):  # closed by `close` in another thread
                raise Gone(self._why())
            if not piece:
                raise Gone(self._why())
            self._buffer += piece

    def close(self) -> None:
        """Kill the process, without waiting for its end: inside a driver no signal may reach it."""
        with contextlib.suppress(OSError):
            self._process.kill()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        _leave(self._process)

    def ended(self) -> bool:
        """Whether the process has ended."""
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
    """Keep a killed process in a list until it has ended, so that it does not stay a zombie and
    Python does not warn about it."""
    with _lock:
        _left.append(process)
        for old in list(_left):
            if old.poll() is not None:
                if old.stdout is not None:
                    old.stdout.close()
                _left.remove(old)


def prepare() -> None:
    """Start the probe that the next `acquire` gets, so that it is ready by then. Raises nothing."""
    with contextlib.suppress(OSError):
        _put_back(Probe())


def acquire() -> Probe:
    """A probe for the caller alone. If the one that `discover` used still runs, it is that one:
    without persistence mode, waking the GPUs a second time takes seconds."""
    global _spare
    with _lock:
        probe, _spare = _spare, None
    if probe is not None:
        if not probe.ended():
            return probe
        probe.close()
    return Probe()


def drop() -> None:
    """End the probe that `discover` has left for `acquire`, in a program that goes on for long."""
    global _spare
    with _lock:
        probe, _spare = _spare, None
    if probe is not None:
        probe.close()


def _put_back(probe: Probe) -> None:
    global _spare
    with _lock:
        old, _spare = _spare, probe
    if old is not None:
        old.close()


def discover(name: str, environ: Mapping[str, str], timeout: float) -> Inventory:
    """Find the devices of the backend `name`, with the driver called in a probe.

    `environ` holds the variables that restrict them (`Backend.variables`). Never raises; returns
    within about `timeout` seconds.
    """
    nothing = registry.load(name).nothing
    try:
        probe = acquire()
    except OSError as error:
        return nothing(environ, f"the process that reads the GPUs could not be started: {error}")
    try:
        probe.send(Discover(name, environ, _SHARE * timeout))
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
    return nothing(environ, f"the driver did not answer in {timeout:g} s (it may hang: see dmesg; "
                            "its own tools, such as nvidia-smi, may hang too)")
