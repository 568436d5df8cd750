"""The probe: a process of its own that calls drivers (`probe_child`), and how it is asked.

A driver call may never return. Every wait here has a time limit, nothing waits for that process to
end, and it ends with its parent. It is asked by messages over a pair of sockets.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from gpu_engine.common.programs import own_program
from gpu_engine.devices.records import Device, Inventory, Sample


@dataclass(frozen=True)
class Discover:
    """Find a backend's devices; answered by an `Inventory`."""

    backend: str
    """A name that `backends.registry` loads."""
    environ: Mapping[str, str]
    """The variables of `Backend.variables` that are set."""
    patience: float
    """How many seconds one device may take."""


@dataclass(frozen=True)
class Watch:
    """These devices are to be read at each `Look`."""

    backend: str
    devices: tuple[Device, ...]
    patience: float
    """Seconds after which a device that does not answer counts as late: its sample says so, and the
    reply is sent without waiting for it any longer."""


@dataclass(frozen=True)
class Look:
    """Read all watched devices; answered by `Looked`."""


@dataclass(frozen=True)
class Looked:
    """One reading of all watched devices."""

    samples: tuple[Sample, ...]
    """In the order of the devices in the request."""
    at: float
    """When the newest of these readings began, monotonic time, which is the same in all processes
    of a machine; minus infinity before the first."""


@dataclass(frozen=True)
class Broken:
    """The driver can't be used at all; the probe ends."""

    problem: str


Request = Discover | Watch | Look
Reply = Inventory | Looked | Broken


class Gone(Exception):
    """The probe has ended or could not be started. The text says why, as far as it is known."""


class Probe:
    """One probe. Only one thread may use it at a time, but `close` may be called from another.
    Raises `Gone` if it can't be started."""

    def __init__(self) -> None:
        from multiprocessing import Pipe  # only where there is a driver

        self._connection, theirs = Pipe()
        self._problem: str | None = None
        """Why it gave up, as it said itself."""
        try:
            self._process = subprocess.Popen(
                own_program("gpu_engine.devices.probe_child"),
                cwd="/",
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,  # it must not print into the panel's terminal
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl+C in the terminal must not end it
            )
        except OSError as error:
            self._connection.close()
            raise Gone(f"the process that reads the GPUs could not be started: {error}") from None
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, request: Request) -> None:
        """Send a request; returns at once, as requests fit into the socket. Raises `Gone`."""
        try:
            self._connection.send(request)
        except OSError:
            raise Gone(self._why()) from None

    def receive(self, timeout: float) -> Inventory | Looked | None:
        """The next reply; None if none comes within `timeout` seconds. Raises `Gone`, also if the
        driver can't be used."""
        try:
            reply = self._connection.recv() if self._connection.poll(timeout) else None
        except (OSError, EOFError):
            raise Gone(self._why()) from None
        if isinstance(reply, Broken):
            self._problem = reply.problem
            raise Gone(reply.problem)
        return reply

    def close(self) -> None:
        """Kill the process, without waiting for its end: inside a driver no signal may reach it.
        It is kept in a list until it has ended, so that it does not stay a zombie."""
        with contextlib.suppress(OSError):
            self._process.kill()
        with _lock:
            _closed.append(self)
            for old in [probe for probe in _closed if probe.ended()]:
                old._connection.close()
                _closed.remove(old)

    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def _why(self) -> str:
        if self._problem:
            return self._problem
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.05)
        code = self._process.returncode
        how = f"was ended by signal {-code}" if code is not None and code < 0 else "has ended"
        return f"the process that reads the GPUs {how}"


_closed: list[Probe] = []
_lock = threading.Lock()
_spare: Probe | None = None
"""A probe that is ready for whoever asks next."""


def acquire() -> Probe:
    """A probe for the caller alone. If the one that `discover` used still runs, it is that one:
    without persistence mode, waking the GPUs a second time takes seconds. Raises `Gone`."""
    global _spare
    with _lock:
        probe, _spare = _spare, None
    if probe is not None and probe.ended():
        probe.close()
        probe = None
    return probe or Probe()


def drop() -> None:
    """End the probe that `discover` has left for `acquire`, in a program that goes on for long."""
    global _spare
    with _lock:
        probe, _spare = _spare, None
    if probe is not None:
        probe.close()


def put_back(probe: Probe) -> None:
    """Keep a probe for the next `acquire`."""
    global _spare
    with _lock:
        old, _spare = _spare, probe
    if old is not None:
        old.close()
