"""Resolving the host name at which machines meet.

A name server that does not answer must not block a screen, so it is asked in a thread, and an
answer that takes too long counts as unknown.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import time

PATIENCE = 2.0
"""Seconds for an answer."""
_KEPT = 30.0
"""Seconds that an answer is good for."""

_answers: dict[str, _Question] = {}
_lock = threading.Lock()


class _Question:
    def __init__(self, host: str) -> None:
        self.asked = time.monotonic()
        self.found: tuple[str, ...] | None = None
        self.done = threading.Event()
        threading.Thread(target=self._ask, args=(host,), name="resolve", daemon=True).start()

    def _ask(self, host: str) -> None:
        try:
            infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            self.found = tuple(dict.fromkeys(str(info[4][0]) for info in infos))
        except (OSError, UnicodeError):  # a label of more than 63 characters is the latter
            self.found = ()
        self.done.set()


def resolve(host: str) -> tuple[str, ...] | None:
    """The numeric addresses that `host` means to this machine; () where it means none, None where
    nobody has answered yet."""
    with _lock:
        question = _answers.get(host)
        if question is None or time.monotonic() - question.asked > _KEPT:
            question = _answers[host] = _Question(host)
    question.done.wait(PATIENCE)
    return question.found


def is_name(host: str) -> bool:
    """Whether `host` is a name and not a numeric address."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return True
    return False


def is_loopback(address: str) -> bool:
    """Whether it is a machine's own address to itself."""
    return address.startswith("127.") or address == "::1"


def own() -> list[str]:
    """This machine's addresses for others, with their interfaces: "10.0.0.1 (eth0)"."""
    import psutil  # late: only a mistake in a host name asks

    return [f"{a.address} ({name})" for name, found in sorted(psutil.net_if_addrs().items())
            for a in found if a.family == socket.AF_INET and not is_loopback(a.address)]
