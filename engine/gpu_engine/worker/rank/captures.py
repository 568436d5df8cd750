"""Keeps the recorder's thread from spoiling a CUDA graph that the task captures.

`torch.cuda.graph` captures in the mode "global". While it does, CUDA refuses calls from *any*
thread that wait for the GPU or query an event, and such a call spoils the capture. A thread can
exclude its own calls with `cudaThreadExchangeStreamCaptureMode` (CUDA Runtime API, 6.4 Stream
Management), as PyTorch's watchdog for NCCL does. torch has no function for that, so it is called
in the CUDA runtime library that torch has loaded.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from pathlib import Path

_RELAXED = 2  # cudaStreamCaptureModeRelaxed
_thread = threading.local()


def exclude_thread() -> None:
    """Exclude this thread's calls from other threads' captures, once CUDA is in use. This holds
    for the thread's life; calling it again costs nothing."""
    if getattr(_thread, "apart", False):
        return
    begun = getattr(sys.modules.get("torch.cuda"), "is_initialized", None)
    if begun is None or not begun():
        return
    _thread.apart = True
    path = _runtime()
    exchange = path and getattr(ctypes.CDLL(path), "cudaThreadExchangeStreamCaptureMode", None)
    if exchange:
        exchange(ctypes.byref(ctypes.c_int(_RELAXED)))


def _runtime() -> str | None:
    """The path of the CUDA runtime library that this process has loaded; None if there is none."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.partition("/")[2]
        if "/libcudart.so" in path:
            return "/" + path
    return None
