"""Trying the way between machines before any rank waits on it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from gpu_engine.common.errors import telling
from gpu_engine.common.files import reason
from gpu_engine.common.ports import listener
from gpu_engine.remote.reach.protocol import Listen, Listening, Reach, Reached
from gpu_engine.remote.there.wire import Asked

_LONGEST = 30.0
_NEXT_AFTER = 0.5
_NO_ANSWER = "no answer: a firewall may be between"
GREETING = b"gpu-panel\n"
"""What a listener of ours says: something else may listen on that port of another machine."""


def listen(asked: Asked, request: Listen) -> None:
    with telling(f"port {request.port} can't be listened on"):
        sock = listener(request.port)
    with sock:
        asked.send(Listening(sock.getsockname()[1]))
        sock.settimeout(0.1)
        end = time.monotonic() + min(request.seconds, _LONGEST)
        while time.monotonic() < end:
            with contextlib.suppress(TimeoutError):
                other, _ = sock.accept()
                with other, contextlib.suppress(OSError):
                    other.sendall(GREETING)
            asked.pause(0)


def reach(asked: Asked, request: Reach) -> None:
    """All addresses at once: one behind a firewall keeps us waiting to the end.

    A first packet that is lost is sent again by the kernel only 1 and 3 s later (RFC 6298, 5.5),
    so that on a line that loses some a single connection may take longer than `seconds`. Another
    one is begun every half a second; the first that gets an answer counts."""
    end = time.monotonic() + min(request.seconds, _LONGEST)
    addresses = request.addresses[:16]
    tried: dict[str, str | None] = {}
    answered = threading.Condition()
    with answered:
        while (left := end - time.monotonic()) > 0 and len(tried) < len(addresses):
            for address in addresses:
                if address not in tried:
                    threading.Thread(target=_try, daemon=True,
                                     args=(address, request.port, left, tried, answered)).start()
            answered.wait_for(lambda: len(tried) == len(addresses), min(left, _NEXT_AFTER))
        asked.send(Reached({a: tried.get(a, _NO_ANSWER) for a in addresses}))


def _try(address: str, port: int, seconds: float, tried: dict[str, str | None],
         answered: threading.Condition) -> None:
    try:
        with socket.create_connection((address, port), seconds) as sock:
            sock.settimeout(seconds)
            said = sock.recv(len(GREETING), socket.MSG_WAITALL)
        found = None if said == GREETING else "another program answers there"
    except TimeoutError:
        return
    except OSError as err:
        found = reason(err)
    with answered:
        tried.setdefault(address, found)
        answered.notify()
