"""An endpoint on loopback that answers as it is told, well or badly, and keeps what it was sent."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Endpoint:
    """A real HTTP server. `answers`: what it does with each request in turn, the last one for all
    further: a status, or a function of the handler."""

    answers: list[int | Callable[[BaseHTTPRequestHandler], object]]
    got: list[Request] = field(default_factory=list)
    port: int = 0
    server: Any = None
    closing: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def redirect(url: str) -> Callable[[BaseHTTPRequestHandler], object]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(307)
        handler.send_header("Location", url)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


def drip(where: str) -> Callable[[BaseHTTPRequestHandler], object]:
    """Send the head or the body of an answer byte by byte, without an end."""
    def answer(handler: BaseHTTPRequestHandler) -> None:
        if where == "body":
            handler.send_response(200)
            handler.end_headers()
        else:
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
        while not handler.server.endpoint.closing.wait(0.002):
            handler.wfile.write(b"x")

    return answer


def hang(handler: BaseHTTPRequestHandler) -> None:
    handler.server.endpoint.closing.wait()


def then(status: int, **headers: str) -> Callable[[BaseHTTPRequestHandler], object]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        endpoint: Endpoint = self.server.endpoint
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        number = len(endpoint.got)
        endpoint.got.append(Request(self.path, dict(self.headers), body))
        answer = endpoint.answers[min(number, len(endpoint.answers) - 1)]
        self.close_connection = True
        try:
            (then(answer) if isinstance(answer, int) else answer)(self)
        except OSError:
            pass

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def endpoint(*answers: int | Callable[[BaseHTTPRequestHandler], object]) -> Iterator[Endpoint]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    made = Endpoint(list(answers) or [200], port=server.server_address[1])
    server.endpoint, made.server = made, server
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()


def private(path: Path, text: str) -> Path:
    """Write a file as notify.toml must be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)
    return path


def seconds() -> Callable[[], float]:
    began = time.monotonic()
    return lambda: time.monotonic() - began
