"""The pages on loopback, behind a token in their address. GET and HEAD, and nothing that acts."""

from __future__ import annotations

import hmac
import secrets
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HOST = "127.0.0.1"
EVERY = 5
"""Seconds after which a browser asks for a page again."""
_KEPT, _SHARE = 3.0, 0.05
"""Seconds for which a page is given to whoever asks, however many do; and the most of a core that
making it may take: that of a long run is kept for longer."""


class Server(ThreadingHTTPServer):
    """Answers on 127.0.0.1 alone until `shutdown`."""

    daemon_threads = True

    def __init__(self, port: int, page: Callable[[str], str | None]) -> None:
        """`page`: the path below the token ("", "run/3f2a") → HTML; None: there is no such page.
        Raises OSError if the port is taken."""
        self.token = secrets.token_urlsafe(16)
        self._page = page
        self._lock = threading.Lock()
        self._made: dict[str, tuple[float, str | None]] = {}
        """Path → until when it is kept, monotonic seconds, and the page."""
        super().__init__((HOST, port), _Handler)

    @property
    def address(self) -> str:
        """What a browser is given."""
        return f"http://{HOST}:{self.server_address[1]}/{self.token}/"

    def html(self, path: str) -> str | None:
        """The page of a request's path; None: there is none, or the token is not ours."""
        parts = path.partition("?")[0].split("/", 2)
        if len(parts) < 3 or not hmac.compare_digest(parts[1].encode(), self.token.encode()):
            return None
        name = parts[2]
        with self._lock:  # one at a time: a phone that asks often must not cost a training its core
            began = time.monotonic()
            self._made = {n: made for n, made in self._made.items() if began < made[0]}
            if name not in self._made:
                text = self._page(name)
                now = time.monotonic()
                self._made[name] = now + max(_KEPT, (now - began) / _SHARE), text
            return self._made[name][1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Somebody who has gone away, as a phone does, is no fault."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server_version = "gpu-panel"
    sys_version = ""
    timeout = 30.0

    def do_GET(self) -> None:
        assert isinstance(self.server, Server)
        try:
            text = self.server.html(self.path)
        except Exception:
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "This page could not be made.\n")
            raise
        if text is None:
            self._answer(HTTPStatus.NOT_FOUND, "There is no such page.\n")
        else:
            self._answer(HTTPStatus.OK, text, "text/html")

    do_HEAD = do_GET

    def _answer(self, status: HTTPStatus, text: str, kind: str = "text/plain") -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in (("Content-Type", f"{kind}; charset=utf-8"),
                            ("Content-Length", str(len(body))), ("Cache-Control", "no-store"),
                            ("Referrer-Policy", "no-referrer"),
                            ("X-Content-Type-Options", "nosniff"),
                            ("Content-Security-Policy", "frame-ancestors 'none'")):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the address has the token in it."""
