"""NVML, the library of NVIDIA's driver, asked through one `query`.

Only this file knows NVML's codes, its older names, and which errors mean that a query is not
supported, that a device is gone, or that the whole driver is. Codes and bits are those of nvml.h,
given as numbers, as older versions of pynvml lack some of the names. Any call here may hang: it is
made in the probe, never in the panel.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gpu_engine.devices.records import HARDWARE_SLOWDOWN, POWER_BRAKE, TOO_HOT, Device

AGAIN = 10.0
"""Seconds after which a refused query is tried again: a driver may refuse in passing, and MIG or
rights may change."""

_NOT_SUPPORTED, _NO_PERMISSION, _NOT_LOADED, _NO_LIBRARY, _NO_FUNCTION, _GONE = 3, 4, 9, 12, 13, 28
_REFUSALS = frozenset({2, _NOT_SUPPORTED, _NO_PERMISSION, _NO_FUNCTION, 22, 25, 26})
"""The driver refuses this query for this device."""
_TROUBLE = frozenset({1, _NOT_LOADED, 15, 16, 18, _GONE})
"""Errors not of the query but of the device, or of the whole driver."""
_LOST = frozenset({_NO_PERMISSION, 15, 16, 17, _GONE})
"""The driver says that nothing can run on this device."""
_START_AGAIN = frozenset({1, _NOT_LOADED, 18})
"""The connection to the driver is broken: only a new nvmlInit can mend it."""

GONE = "GPU is gone: the driver no longer lists it"
_ERRORS = {
    1: "the driver was unloaded",
    _NO_PERMISSION: "this user may not use it (check the permissions of /dev/nvidia*)",
    _NOT_LOADED: "the NVIDIA driver is not loaded (try: sudo modprobe nvidia)",
    10: "the driver timed out",
    11: "the driver has a problem with the GPU's interrupts (see dmesg)",
    14: "the GPU's infoROM is corrupted",
    15: "lost: it fell off the bus (dmesg says which Xid); a reset or a reboot brings it back",
    16: "the GPU must be reset before it can be used (nvidia-smi --gpu-reset)",
    17: "the operating system blocks access to the GPU (a container without GPU rights?)",
    18: "the NVIDIA driver and its library have different versions, as after an update: "
    "reboot, or reload the nvidia kernel module",
    20: "the driver is out of memory",
    _GONE: GONE,
    999: "the driver reports an unknown error for it (see dmesg)",
}

_NAMES = {
    "nvmlDeviceGetMemoryInfo": ("nvmlDeviceGetMemoryInfo@nvmlMemory_v2", "nvmlDeviceGetMemoryInfo"),
    "nvmlDeviceGetTemperature": ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"),
    "nvmlDeviceGetCurrentClocksEventReasons": (
        "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
}
"""The names of a query, the newest first; "@" stands before a version that is an argument."""


class Trouble(Exception):
    """The device, or the whole driver, can't be used. The text is for people."""

    def __init__(self, code: int) -> None:
        super().__init__(_ERRORS.get(code, f"the driver reports error {code}"))
        self.lost = code in _LOST
        """Whether the driver says that nothing can run on the device."""
        self.start_again = code in _START_AGAIN
        """Whether only a new process can use the driver again."""


class Handle:
    """A GPU, a MIG slice, or (without `of`) the driver itself, and which queries work for it."""

    def __init__(self, nvml: Any, of: Any = None,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml, self._of, self._clock = nvml, of, clock
        self._refused: dict[object, tuple[float, int]] = {}
        """When a query is tried again, and NVML's code."""
        self.begin()

    def query(self, function: str, *args: Any, default: Any = None) -> Any:
        """The answer of a function of pynvml, called with this handle and `args`; `default` if
        there is none now. A refused query is not repeated every second. Raises `Trouble` for an
        error of the whole device.
        """
        again, _ = self._refused.get((function, args), (0.0, 0))
        if self._clock() < again:
            return default
        code = _NO_FUNCTION
        for name in _NAMES.get(function, (function,)):
            try:
                base, _, version = name.partition("@")
                more = {"version": getattr(self._nvml, version)} if version else {}
                handle = () if self._of is None else (self._of,)
                answer = getattr(self._nvml, base)(*handle, *args, **more)
            except Exception as error:  # noqa: BLE001  pynvml makes its classes at run time
                self._error = code = _code(error)
            else:
                self._refused.pop((function, args), None)
                self._answered = True
                return answer.decode(errors="replace") if isinstance(answer, bytes) else answer
            if code in _TROUBLE:
                raise Trouble(code)
            if code not in _REFUSALS:
                return default  # a passing error: try again next time
        self._refused[function, args] = self._clock() + AGAIN, code
        return default

    def refuses(self, function: str) -> bool:
        """Whether the driver refused this query when it was last tried."""
        return (function, ()) in self._refused

    def unsupported(self, function: str) -> bool:
        """Whether the driver said that this device does not support this query."""
        return self._refused.get((function, ()), (0.0, 0))[1] == _NOT_SUPPORTED

    def begin(self) -> None:
        """Begin a reading, for `check`."""
        self._answered, self._error = False, None

    def check(self) -> None:
        """Raise `Trouble` if nothing was answered since `begin`, and not because it is refused."""
        if not self._answered and self._error not in (None, *_REFUSALS):
            raise Trouble(self._error or 999)

    def gpu(self, index: int) -> Handle:
        """The GPU with this number. Raises `Trouble`."""
        try:
            return Handle(self._nvml, self._nvml.nvmlDeviceGetHandleByIndex(index), self._clock)
        except Exception as error:  # noqa: BLE001
            code = _code(error)
            raise Trouble(_GONE if code in (2, 6) else code) from None

    def find(self, device: Device) -> tuple[Handle, Handle]:
        """The GPU of a device, and the device: the same, or its slice. Raises `Trouble`.

        The UUID decides, as indices change when a card falls off the bus. NVML's search by UUID is
        not used: one lost GPU makes it fail for all others (nvml.h, nvmlDeviceGetHandleByUUID).
        """
        first, trouble = device.index or 0, None
        if device.uuid is None:
            return (gpu := self.gpu(first)), gpu
        count = self.query("nvmlDeviceGetCount", default=0)
        for index in (first, *(i for i in range(count) if i != first)):
            try:
                gpu = self.gpu(index)
                for part in gpu.slices().values() if device.is_slice else (gpu,):
                    if part.query("nvmlDeviceGetUUID") == device.uuid:
                        return gpu, part
            except Trouble as own:
                if index == first or own.start_again:
                    trouble = own
        raise trouble or Trouble(_GONE)

    def slices(self) -> dict[int, Handle]:
        """The MIG slices of this GPU, by their number on it."""
        found = {}
        for number in range(self.query("nvmlDeviceGetMaxMigDeviceCount", default=0)):
            part = self.query("nvmlDeviceGetMigDeviceHandleByIndex", number)
            if part is not None:
                found[number] = Handle(self._nvml, part, self._clock)
        return found


def start(clock: Callable[[], float] = time.monotonic) -> Handle | None:
    """Start NVML, and return the driver. None if its library is not installed: this machine then
    has no NVIDIA GPU. Raises `Trouble`, and ImportError if the package installed as pynvml is not
    NVIDIA's.

    NVML is never shut down, as that crashes the process while another thread is inside a call. The
    system cleans up when the process ends.
    """
    import pynvml  # takes 46 ms

    if hasattr(pynvml, "__path__"):  # NVIDIA's is a single file
        raise ImportError("the installed package 'pynvml' is not NVIDIA's: pip uninstall pynvml, "
                          "then pip install --force-reinstall nvidia-ml-py")
    try:
        pynvml.nvmlInit()
    except Exception as error:  # noqa: BLE001
        if _code(error) == _NO_LIBRARY:
            return None
        raise Trouble(_code(error)) from None
    return Handle(pynvml, clock=clock)


def _code(error: Exception) -> int:
    """NVML's error code in an exception of pynvml's. What is raised for a function that the library
    or pynvml lacks carries none."""
    value = getattr(error, "value", None)
    return value if isinstance(value, int) else _NO_FUNCTION


# Bit 0x1 means idle and is left out. Bit 0x2 means that a user has set application clocks.
_THROTTLE = {
    0x2: "clocks set by a user", 0x4: "power limit", 0x40: TOO_HOT, 0x80: POWER_BRAKE,
    0x8: HARDWARE_SLOWDOWN, 0x10: "sync boost", 0x20: "too hot", 0x100: "display clocks",
    0x200: "board limit", 0x400: "reliability voltage",
}


def throttle(bits: int) -> tuple[str, ...]:
    """Why the clocks are held down, in words, the most telling reason first. The bit for idle and
    unknown bits are ignored."""
    if bits & (0x40 | 0x80):
        bits &= ~0x8  # it is set beside the bit that says why
    return tuple(text for bit, text in _THROTTLE.items() if bits & bit)
