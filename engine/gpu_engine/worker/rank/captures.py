"""The recorder's thread beside a CUDA graph that the task captures.

`torch.cuda.graph` captures in the mode "global": while it does, a call in *any* thread that waits
for the GPU or asks an event whether it has passed is refused, and spoils the capture. A thread can
say that its calls are none of the capture's business (`cudaThreadExchangeStreamCaptureMode`, CUDA
Runtime API, 6.4 Stream Management), as PyTorch's own watchdog of NCCL does; torch has no function
for it, so the runtime library that it loaded is asked.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from pathlib import Path

_RELAXED = 2  # cudaStreamCaptureModeRelaxed
_thread = threading.local()


def leave_alone() -> None:
    """Have this thread's calls leave other threads' captures alone, once CUDA is in use. It holds
    for the thread's life; what follows costs nothing."""
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
    """The file of the CUDA runtime that this process has loaded."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.partition("/")[2]
        if "/libcudart.so" in path:
            return "/" + path
    return None
