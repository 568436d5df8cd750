"""TCP ports of this machine: which one is free, and why one is not; and the network interface that
leads to a host."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import random
import socket
import struct
from pathlib import Path

_SIOCGIFADDR = 0x8915  # linux/sockios.h


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


def address_of(host: str | None) -> str | None:
    """The numeric address that `host` resolves to here; None if that is this machine itself
    (Debian resolves a machine's own name to 127.0.1.1) or it does not resolve."""
    try:
        found = socket.getaddrinfo(host or "", 9, type=socket.SOCK_DGRAM)[0][4][0]
    except OSError:
        return None
    address = str(found)
    return None if address.startswith("127.") or address == "::1" else address


def interface_to(address: str) -> str | None:
    """The name of the network interface through which `address` is reached; None if unknown.
    Connecting a UDP socket sends nothing, but gives it the local address of the route."""
    try:
        infos = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)
        family, kind, proto, _, target = infos[0]
        with socket.socket(family, kind, proto) as probe:
            probe.connect(target)
            local = probe.getsockname()[0]
    except OSError:
        return None
    for _, name in socket.if_nameindex():
        if local in _addresses(name):
            return name
    # No interface lists 127.0.0.2 and the like as its address.
    return "lo" if local.startswith("127.") else None


def _addresses(name: str) -> set[str]:
    found = set()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, contextlib.suppress(OSError):
        answer = fcntl.ioctl(sock, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        found.add(socket.inet_ntoa(answer[20:24]))
    with contextlib.suppress(OSError), open("/proc/net/if_inet6") as table:  # noqa: PTH123
        for line in table:
            raw, *_, owner = line.split()
            if owner == name:
                found.add(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(raw)))
    return found
