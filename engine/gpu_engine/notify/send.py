"""Delivering one message to one entry, within a bounded time and without a word of its secrets.

Redirects are never followed: an endpoint could have us write to an address of this machine or of
its network. TLS certificates are verified. Of an answer only the status is read. What is said of a
failure never comes from the endpoint or from the libraries, whose words may have the address in
them.

What each service wants to be sent. Sources:

- ntfy, "Publish as JSON" (docs.ntfy.sh/publish): the topic is in the body and the request goes to
  the server's root; `priority` 1 to 5, 3 is usual; `tags` that are names of emoji are shown as
  those; a message above 4,096 bytes becomes an attachment; an access token goes into
  `Authorization: Bearer`.
- Whatever else: Apprise, which knows a hundred services.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import queue
import re
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit, urlunsplit

from gpu_engine.common.files import reason
from gpu_engine.common.programs import version
from gpu_engine.notify.config import To
from gpu_engine.notify.messages import Message

SECONDS = 10.0
"""Within which an endpoint has to go on answering."""
PAUSES = (1.0, 3.0)
"""Seconds between three tries."""
COMMAND_SECONDS = 30.0
"""For a command."""
IN_ALL = 45.0
"""Seconds after which an entry is given up, whatever it is doing."""
_GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL for a command's group."""
_OWN = ("GPU_PANEL_RUN", "GPU_PANEL_ATTEMPT")
"""A process with these counts as one of the run's ranks."""

Result = str | None
"""Why a message was not delivered; None: it was."""


def deliver_all(to: Iterable[To], message: Message) -> Iterator[tuple[To, Result]]:
    """Deliver `message` to all entries at once, each in a thread of its own. Yields how that went
    for each as it is known.

    A thread whose time is up is left behind: looking up a host can't be interrupted, and a socket's
    own timeout begins anew with each byte of an answer that drips.
    """
    entries = dict(enumerate(to))
    # Not SimpleQueue: in Python 3.11 and 3.12 its `get(timeout=…)` may wait for ever if a signal
    # comes just as the time is over (Modules/_queuemodule.c).
    known: queue.Queue[tuple[int, Result]] = queue.Queue()
    for number, entry in entries.items():
        threading.Thread(target=lambda n=number, e=entry: known.put((n, deliver(e, message))),
                         daemon=True).start()
    until = time.monotonic() + IN_ALL
    while entries:
        try:
            number, result = known.get(timeout=max(until - time.monotonic(), 0.0))
        except queue.Empty:
            number, result = min(entries), f"no answer within {IN_ALL:.0f} s"
        if number in entries:  # else it was given up, and is known now
            yield entries.pop(number), result


def deliver(to: To, message: Message, *, sleep: Callable[[float], object] = time.sleep) -> Result:
    """Deliver `message` to `to`. Raises nothing."""
    try:
        if to.kind == "command":
            return _command(to.command, message)
        if to.kind == "apprise":
            attempt = lambda: _by_apprise(to.url, message)  # noqa: E731
        else:
            request = post(to, message)
            attempt = lambda: _try(request)  # noqa: E731
        why, again = attempt()
        for pause in PAUSES:
            if not again:
                return why
            sleep(pause)
            why, again = attempt()
        return why and (f"{why}, {1 + len(PAUSES)} times" if again else why)
    except Exception as err:  # noqa: BLE001  its text may have a secret in it
        return f"a fault of gpu-panel: {type(err).__name__}"


# --- a request ----------------------------------------------------------------------------------

class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any
                         ) -> None:
        return None  # it is then answered as any other status


def _try(request: urllib.request.Request) -> tuple[Result, bool]:
    """Send a request once, through a proxy if the environment names one: how that went, in our own
    words, and whether another try may help."""
    opener = urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(
        context=ssl.create_default_context()))
    try:
        with opener.open(request, timeout=SECONDS):
            return None, False
    except HTTPError as answer:
        with answer:
            code = answer.code
            more = ", a redirect, which is never followed" if 300 <= code < 400 else ""
            return f"the endpoint answered {code}{more}", code == 429 or code >= 500
    except (OSError, http.client.HTTPException) as raised:
        err = raised.reason if isinstance(raised, URLError) else raised
    if isinstance(err, TimeoutError):
        return f"no answer within {SECONDS:.0f} s", False
    if isinstance(err, ssl.SSLCertVerificationError):
        return "its certificate can't be verified", False
    if isinstance(err, socket.gaierror):
        return "its host can't be found", True
    if isinstance(err, OSError) and err.errno and not isinstance(err, ssl.SSLError):
        return reason(OSError(err.errno, os.strerror(err.errno))), True
    if isinstance(err, http.client.RemoteDisconnected):
        return "the endpoint closed the connection without an answer", True
    return "no HTTP or TLS is spoken there, or by the proxy", False


# --- by Apprise ---------------------------------------------------------------------------------

def _by_apprise(url: str, message: Message) -> tuple[Result, bool]:
    """As `_try`, by Apprise. Why it could not is in its logs alone, with the address: they are
    thrown away."""
    import apprise

    for name in ("apprise", "urllib3"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    service = apprise.Apprise(asset=apprise.AppriseAsset(http_redirects=False))
    if not service.add(url):
        return "Apprise does not know such an address", False
    # A run's name is data: whatever stands in it calls nobody.
    title, text = (_CALLS.sub("\\g<0>\N{ZERO WIDTH SPACE}", said)
                   for said in (message.title, message.text))
    kind = {"finished": "success", "stalled": "warning"}.get(
        message.event, "failure" if message.event in _PRIORITY else "info")
    done = service.notify(body=text, title=title, notify_type=kind, body_format="text")
    return (None, False) if done else ("Apprise could not deliver it", True)


# --- a command ----------------------------------------------------------------------------------

def _command(words: tuple[str, ...], message: Message) -> Result:
    """Run a command with the message as JSON on its standard input, and in its environment. What
    it prints is thrown away, as it may have secrets in it."""
    told = {k: v for k, v in os.environ.items() if k not in _OWN}
    for key, value in message.to_dict().items():
        if isinstance(value, list | tuple):
            value = ",".join(map(str, value))
        told[f"GPU_PANEL_NOTIFY_{key.upper()}"] = "" if value is None else str(value)
    try:
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, start_new_session=True, cwd="/",
                                   env=told)
    except OSError as err:
        return f"its command can't be started: {reason(err)}"
    try:
        process.communicate(json.dumps(message.to_dict(), allow_nan=False).encode() + b"\n",
                            timeout=COMMAND_SECONDS)
    except subprocess.TimeoutExpired:
        _end_group(process)
        return f"its command did not end within {COMMAND_SECONDS:.0f} s, and was ended"
    if process.returncode < 0:
        return f"its command was ended by signal {-process.returncode}"
    return f"its command ended with status {process.returncode}" if process.returncode else None


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a command with everything in its group. Its leader is reaped last, so that the group's
    number can't be another's."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGTERM)
    time.sleep(_GRACE)
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()


_NTFY_MOST = 4000
"""Bytes; below its limit, as the text is cut between characters."""
_PRIORITY = {"failed": 4, "lost": 4, "stalled": 4}
_TAG = {"finished": "white_check_mark", "failed": "x", "lost": "x", "stalled": "warning",
        "stopped": "stop_button"}
_CALLS = re.compile("[@<]")
"""Begins what a service takes for a call of somebody, or of all: "@everyone", "<!channel>"."""


def post(to: To, message: Message) -> urllib.request.Request:
    """The request that tells `to`, of the kind "ntfy" or "json", of `message`."""
    url, value = to.url, message.to_dict()
    if to.kind == "ntfy":
        # The server's root, and the topic.
        parts = urlsplit(to.url)
        root, _, topic = parts.path.rstrip("/").rpartition("/")
        url, topic = urlunsplit((parts.scheme, parts.netloc, root + "/", "", "")), unquote(topic)
        value = {"topic": topic, "title": message.title, "message": _cut(message.text, _NTFY_MOST),
                 "priority": _PRIORITY.get(message.event, 3),
                 "tags": [_TAG[message.event]] if message.event in _TAG else []}
    headers = {"Content-Type": "application/json", "User-Agent": f"gpu-panel/{version()}"}
    if to.token is not None:
        headers["Authorization"] = f"Bearer {to.token}"
    body = json.dumps(value, allow_nan=False).encode()
    return urllib.request.Request(url, body, headers)  # its scheme: see `config`


def _cut(text: str, most: int) -> str:
    """`text`, in UTF-8 at most `most` bytes."""
    data = text.encode()
    return text if len(data) <= most else data[:most - 3].decode(errors="ignore") + "…"
