"""TCP ports of this machine: which one is free, and why one is not."""

from __future__ import annotations

import errno
import socket


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
    """A TCP port that nothing listens on now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.bind(("", 0))
        return sock.getsockname()[1]
