"""TCP ports of this machine: which one is free, and why one is not."""

from __future__ import annotations

import errno
import socket


def port_taken(port: int) -> str | None:
    """Why a rendezvous could not listen on `port` of this machine; None: it could.

    The store binds all addresses, so that is what is tried, without SO_REUSEADDR's blindness to
    a listener; connections of an earlier run in TIME_WAIT do not count as taken.
    """
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind((address, port))
                sock.listen(1)
        except OSError as err:
            if err.errno == errno.EADDRINUSE:
                return f"the port is taken on this machine; {free_port()} is free"
            if family == socket.AF_INET:
                return f"can't listen on it: {err.strerror}"
    return None


def free_port() -> int:
    """A TCP port that nothing listens on now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.bind(("", 0))
        return sock.getsockname()[1]
