"""The caller's side of the process that talks to the driver (`probe_child`).

Nothing here waits longer than it is told to, and nothing waits for that process to end.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import select
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from gpu_engine.devices.records import Device, Inventory

LIBRARY = "libnvidia-ml.so.1"
_START = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from gpu_engine.devices.probe.child import main; main()"
)


_SHARE = 0.75
"""Part of the time for finding devices that a single GPU may take."""


class Gone(Exception):
    """The probe has ended; the text says why where that is known."""


class Probe:
    """One such process. Not for two threads at a time."""

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
        return self._process.pid

    def send(self, request: tuple[str, Any]) -> None:
        """Raises `Gone`. Requests are small: the pipe takes them without waiting."""
        body = pickle.dumps(request, protocol=pickle.HIGHEST_PROTOCOL)
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(struct.pack("<I", len(body)) + body)
        except (OSError, ValueError):
            raise Gone(self._why())

    def receive(self, timeout: float) -> tuple[str, Any] | None:
        """The next reply, or None when none came in time. Raises `Gone`."""
        assert self._process.stdout is not None
        end = time.monotonic() + timeout
        while True:
            message = self._unpack()
            if message is not None:
                if message[0] == "broken":
                    self.problem = message[1]
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
        """End it at once, without waiting: in the driver it may be beyond any signal."""
        with contextlib.suppress(OSError):
            self._process.kill()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        _leave(self._process)

    def ended(self) -> bool:
        return self._process.poll() is not None

    def _unpack(self) -> tuple[str, Any] | None:
        if len(self._buffer) < 4:
            return None
        size = struct.unpack_from("<I", self._buffer)[0]
        if len(self._buffer) < 4 + size:
            return None
        body = bytes(self._buffer[4 : 4 + size])
        del self._buffer[: 4 + size]
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
    """Keep what was killed until it is seen dead, so that no zombie and no warning stays."""
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


def library_present() -> bool:
    """Whether there is a driver library at all: a machine without one needs no probe.

    Opening it runs none of its calls. The environment is looked at too, as the loader of this
    process does not see what was set after it started.
    """
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    if any((Path(f) / LIBRARY).exists() for f in folders if f):
        return True
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


def discover(timeout: float) -> Inventory:
    """The GPUs, asked in another process. Never raises, and returns within about `timeout`."""
    inherited = os.environ.get("CUDA_VISIBLE_DEVICES")
    none = Inventory((), "nvml", inherited_visible=inherited)
    if not library_present():
        return none
    try:
        probe = take()
    except OSError as error:
        return _with(none, f"the process that reads the GPUs could not be started: {error}")
    try:
        order = os.environ.get("CUDA_DEVICE_ORDER")
        probe.send(("discover", (inherited, order, _SHARE * timeout)))
        reply = probe.receive(timeout)
    except Gone as gone:
        probe.close()
        return _with(none, str(gone))
    if reply is None:
        probe.close()
        return _with(
            none,
            f"the driver did not answer in {timeout:g} s (it may hang: see dmesg; nvidia-smi "
            f"would wait as well)",
        )
    if reply[0] != "inventory":
        probe.close()
        return _with(none, str(reply[1]))
    _put_back(probe)
    return reply[1]


def watch(
    probe: Probe,
    devices: tuple[Device, ...],
    interval: float,
    patience: float,
) -> None:
    """Have it send ("samples", …) at each interval from now on. Raises `Gone`.

    A GPU that does not answer within `patience` seconds is said to be late, and the others wait
    for it no longer.
    """
    probe.send(("watch", (devices, interval, patience)))


def watch_bus(probe: Probe, device_ids: frozenset[str]) -> None:
    """Have it read the bus rates of these devices, and of no other, from now on. Raises `Gone`."""
    probe.send(("bus", device_ids))


def _with(inventory: Inventory, problem: str) -> Inventory:
    return Inventory(
        inventory.devices,
        inventory.source,
        problem=problem,
        inherited_visible=inventory.inherited_visible,
    )
