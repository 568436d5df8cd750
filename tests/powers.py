"""Drops root's power to read every file and folder for a while, so that tests of missing
permissions also work as root. See Linux capabilities, capabilities(7)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_DAC = (1, 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
_VERSION_3 = 0x20080522
_libc = ctypes.CDLL(None, use_errno=True)


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Data(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint32) for n in ("effective", "permitted", "inheritable")]


@contextmanager
def root_powers_dropped() -> Iterator[None]:
    """Within this, the thread, and threads that it starts, have to obey file permissions."""
    header, data = _Header(_VERSION_3, 0), (_Data * 2)()
    _checked(_libc.capget(ctypes.byref(header), data))
    before = data[0].effective
    data[0].effective &= ~sum(1 << c for c in _DAC)
    _checked(_libc.capset(ctypes.byref(header), data))
    try:
        yield
    finally:
        data[0].effective = before
        _checked(_libc.capset(ctypes.byref(header), data))


def drop_root_powers() -> None:
    """Drop the power for good, in a child before it executes another program."""
    if os.geteuid() == 0:
        for capability in _DAC:
            _checked(_libc.prctl(24, capability, 0, 0, 0))  # PR_CAPBSET_DROP


def _checked(status: int) -> None:
    if status != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
