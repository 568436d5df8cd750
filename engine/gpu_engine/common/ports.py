"""TCP ports of this machine: which one is free, and why one is not."""

from __future__ import annotations

import contextlib
import errno
import random
import socket
from pathlib import Path


def port_taken(port: int) -> str | None:
    """Why a rendezvous could not listen on `port` here; None: it could. Connections of an earlier
    run in TIME_WAIT do not count as taken."""
    try:
        listener(port).close()
    except OSError as err:
        if err.errno == errno.EADDRINUSE:
            return f"the port is taken on this machine; {free_port()} is free"
        return f"can't listen on it: {err.strerror}"
    return None


def listener(port: int) -> socket.socket:
    """A socket that listens on all addresses of this machine, as a rendezvous would. Raises
    OSError."""
    try:
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    except (OSError, ValueError) as err:
        if getattr(err, "errno", None) == errno.EADDRINUSE:
            raise
        return socket.create_server(("", port))  # there is no IPv6 here


def free_port() -> int:
    """A TCP port that nothing listens on now. It is none of those that the kernel gives to whoever
    asks for any: one of these may be another's by the time that the caller listens."""
    given = Path("/proc/sys/net/ipv4/ip_local_port_range")
    with contextlib.suppress(OSError, ValueError):
        low, high = map(int, given.read_text().split())
        others = [*range(10_000, low), *range(high + 1, 1 << 16)]
        # Forks of one process would all draw the same from `random` itself.
        for port in random.SystemRandom().sample(others, min(len(others), 100)):
            with contextlib.suppress(OSError):
                listener(port).close()
                return port
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.bind(("", 0))
        return sock.getsockname()[1]
