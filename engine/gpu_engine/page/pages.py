"""Devices, runs, curves and logs as pages for a browser, read from the devices and the run folders:
to look at, and nothing else. They are on loopback, behind a token in their address: GET and HEAD,
and nothing that acts.
"""

from __future__ import annotations

import hmac
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gpu_engine.common import paths, units
from gpu_engine.common.clean import clean, clean_lines
from gpu_engine.common.errors import UserError
from gpu_engine.common.files import file_inside
from gpu_engine.devices import availability, leases
from gpu_engine.devices.records import Sample, Snapshot
from gpu_engine.events.paths import inside
from gpu_engine.report import content, listing
from gpu_engine.report.content import Section, Table, Text
from gpu_engine.runs import folder
from gpu_engine.runs.folder import Run
from gpu_engine.runs.query import parse

LISTED = 30
"""Runs in the list."""
_LOGS = 4
"""Logs of a run that are shown."""
_LOG, _LOG_LINES = 1 << 15, 40
"""Bytes of a log's end that are read, and lines of it that are shown."""
_BAR = 8
"""Cells."""


def overview(snapshots: Sequence[Snapshot], link: str) -> list[Section]:
    """Devices and the newest runs. `snapshots`: the last ones, newest last. `link`: where a run's
    id leads, with {id} in it."""
    rows, more = listing.found_runs(parse(""), LISTED, listing.Order("created", False, 0.0))
    heads, lines = listing.cells(rows, time.time())
    parts: list[Table | Text] = [Table(heads, tuple(lines),
                                       tuple(link.format(id=quoted(line[0])) for line in lines))
                                 if lines else Text(("No runs yet.",))]
    if more:
        parts.append(Text((f"and {more:,} older ones",)))
    return [Section("Devices", (_devices(snapshots),)), Section("Runs", tuple(parts))]


def of_run(run: Run) -> list[Section]:
    """A run as a report tells it, and the last lines of its logs."""
    try:
        sections = content.of_run(content.read(run))
    except UserError as err:
        sections = [Section("How it stands", (Text((run.state().state, str(err))),))]
    at = next((i for i, one in enumerate(sections) if one.title == content.CURVES), 0) + 1
    logs = [Section(f"Log of rank {rank}", (Text(lines, exact=True),))
            for rank, path in _logs(run) if (lines := _last_lines(path))]
    return [*sections[:at], *logs, *sections[at:]]


def quoted(name: str) -> str:
    """A run's id in an address: that of a folder may be any bytes."""
    return quote(os.fsencode(name), safe="")


def known(name: str) -> Run | None:
    """The run with exactly this id, as it stands in an address."""
    return next((run for run in folder.all_runs() if quoted(run.id) == name), None)


def in_one(snapshots: Sequence[Snapshot]) -> list[Section]:
    """All in one page: the overview, then each run that is live, or the newest."""
    runs = folder.all_runs()[:LISTED]
    chosen = [run for run in runs if run.state().live] or runs[:1]
    sections = overview(snapshots, "#{id}")
    for run in chosen:
        first, *rest = of_run(run)
        sections += [replace(first, title=f"{run.id} {run.state().name}: {first.title}",
                             name=quoted(run.id)), *rest]
    return sections


def _devices(snapshots: Sequence[Snapshot]) -> Table | Text:
    if not snapshots:
        return Text(("They are being read.",))
    states = availability.judge_all(snapshots, leases.holders(paths.leases_folder()))
    rows = tuple(_device(one, states[one.device.id].reason) for one in snapshots[-1].samples)
    return Table(("", "name", "use", "memory", "", "state"), rows)


def _device(sample: Sample, reason: str) -> tuple[str, ...]:
    more = [f"{sample.temperature:.0f} °C"] if sample.temperature is not None else []
    more += [f"{sample.power:.0f} W"] if sample.power is not None else []
    share = sample.memory_used / sample.memory_total \
        if sample.memory_used is not None and sample.memory_total else None
    return (sample.device.id, sample.device.name,
            f"{_bar(sample.utilization)} {units.share(sample.utilization)}",
            f"{_bar(share)} {units.gib(sample.memory_used)} / {units.gib(sample.memory_total)} GiB",
            " · ".join(more), clean(sample.problem or reason))


def _bar(share: float | None) -> str:
    full = round(_BAR * min(max(share or 0.0, 0.0), 1.0))
    return "█" * full + "░" * (_BAR - full)


def _logs(run: Run) -> list[tuple[int, Path]]:
    """The logs of the first ranks; one that several share by the first of them."""
    found: dict[Path, int] = {}
    for rank in run.ranks()[:_LOGS]:
        found.setdefault(run.output(rank), rank)
    return [(rank, path) for path, rank in found.items()]


def _last_lines(path: Path) -> tuple[str, ...]:
    try:
        with file_inside(*inside(path)) as file:
            file.seek(max(file.seek(0, 2) - _LOG, 0))
            text = file.read(_LOG).decode(errors="replace")
    except OSError:
        return ()
    return tuple(clean_lines(text)[-_LOG_LINES:])


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
