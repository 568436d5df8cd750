"""NVML's codes, the messages for them that a person can act on, and checks of NVML's values.

Codes and bits are those of nvml.h (`nvmlReturn_t`, `nvmlClocksEventReason*`). They are given as
numbers, as older versions of pynvml lack some of the names.
"""

from __future__ import annotations

from typing import TypeVar

from gpu_engine.devices.records import HARDWARE_SLOWDOWN, POWER_BRAKE, TOO_HOT

NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GONE = 28

# The driver refuses this query for this device: repeating it every second is useless.
REFUSALS = frozenset({2, NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, 22, 25, 26})

# Errors not of the query but of the device, or of the whole driver.
TROUBLE = frozenset({1, NOT_LOADED, 15, 16, 18, GONE})

# The driver says that nothing can run on this device.
LOST = frozenset({NO_PERMISSION, 15, 16, 17, GONE})

# The connection to the driver is broken: only a new nvmlInit can mend it.
START_AGAIN = frozenset({1, NOT_LOADED, 18})

_ERRORS = {
    1: "the driver was unloaded",
    NO_PERMISSION: "this user may not use it (check the permissions of /dev/nvidia*)",
    NOT_LOADED: "the NVIDIA driver is not loaded (try: sudo modprobe nvidia)",
    10: "the driver timed out",
    11: "the driver has a problem with the GPU's interrupts (see dmesg)",
    14: "the GPU's infoROM is corrupted",
    15: "GPU is lost: it fell off the bus or no longer answers (see dmesg for Xid; a reset of "
    "the GPU or a reboot brings it back)",
    16: "the GPU must be reset before it can be used (nvidia-smi --gpu-reset)",
    17: "the operating system blocks access to the GPU (a container without GPU rights?)",
    18: "the NVIDIA driver and its library have different versions, as after an update: "
    "reboot, or reload the nvidia kernel module",
    20: "the driver is out of memory",
    GONE: "GPU is gone: the driver no longer lists it",
    999: "the driver reports an unknown error for it (see dmesg)",
}


def error(code: int) -> str:
    """The message for an NVML error code, with a remedy if one is known."""
    return _ERRORS.get(code, f"the driver reports error {code}")


_THROTTLE = (
    # Bit 0x1 means idle and is left out. Bit 0x2 means that a user has set application clocks.
    (0x2, "clocks set by a user"),
    (0x4, "power limit"),
    (0x40, TOO_HOT),
    (0x80, POWER_BRAKE),
    (0x8, HARDWARE_SLOWDOWN),
    (0x10, "sync boost"),
    (0x20, "too hot"),
    (0x100, "display clocks"),
    (0x200, "board limit"),
    (0x400, "reliability voltage"),
)

def throttle(bits: int) -> tuple[str, ...]:
    """Why the clocks are held down, in words, the most telling reason first. The bit for idle and
    unknown bits are ignored."""
    reasons = [text for bit, text in _THROTTLE if bits & bit]
    if len(reasons) > 1 and bits & (0x40 | 0x80) and bits & 0x8:
        reasons.remove(HARDWARE_SLOWDOWN)  # 0x8 is set beside the bit that says why
    return tuple(reasons)


COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}


def share(percent: int | None) -> float | None:
    """A percentage as a share from 0 to 1; None if it can't be true (4000000 was seen)."""
    return percent / 100 if percent is not None and 0 <= percent <= 100 else None


_Number = TypeVar("_Number", int, float)


def within(value: _Number | None, low: float, high: float) -> _Number | None:
    """The value if it is from `low` to `high`, else None: drivers give 0xFFFFFFFF for "unknown"."""
    return value if value is not None and low <= value <= high else None
