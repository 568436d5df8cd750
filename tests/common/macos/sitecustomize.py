"""Hides from a Python what macOS does not have, as far as that can be done on Linux.

What the standard library, psutil and torch use themselves is loaded before: they have versions for
macOS. /proc and /sys can't be opened or listed but by psutil, which stands for the system there.
"""

import asyncio
import fcntl
import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import psutil

LINUX_ONLY = {
    os: ("pidfd_open", "sched_getaffinity", "sched_setaffinity", "O_TMPFILE", "O_PATH", "pipe2",
         "memfd_create", "posix_fadvise", "posix_fallocate", "waitid", "eventfd", "sendfile",
         "copy_file_range", "splice", "setns", "unshare", "getrandom", "fdatasync", "prlimit"),
    fcntl: tuple(n for n in dir(fcntl) if n.startswith(("F_OFD", "F_ADD_SEALS", "F_SETPIPE"))),
    select: ("epoll",),
    signal: ("pidfd_send_signal", "sigtimedwait", "sigwaitinfo", "SIGSTKFLT", "SIGPWR", "SIGPOLL",
             "SIGRTMIN", "SIGRTMAX"),
    socket: tuple(n for n in dir(socket) if n.startswith(("AF_NETLINK", "AF_VSOCK", "AF_PACKET",
                                                          "TCP_USER_TIMEOUT", "SO_PEERCRED",
                                                          "SO_BINDTODEVICE", "SO_MARK"))),
    time: ("CLOCK_BOOTTIME",),
}
assert asyncio
assert multiprocessing
assert subprocess
assert urllib.request
for module, names in LINUX_ONLY.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)


def refuse(event: str, args: tuple) -> None:
    if event not in ("open", "os.listdir", "os.scandir") or not isinstance(args[0], (str, bytes)):
        return
    path = os.fsdecode(args[0])
    if not path.startswith(("/proc", "/sys")):
        return
    frame = sys._getframe(1)
    while frame is not None:
        if "/psutil/" in frame.f_code.co_filename:
            return
        frame = frame.f_back
    raise FileNotFoundError(2, "there is no such file on macOS", path)


if psutil.LINUX:
    sys.addaudithook(refuse)
    sys.platform = "darwin"
