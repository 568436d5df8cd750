"""Delivering one message to one entry, within a bounded time and without a word of its secrets.

Redirects are never followed: an endpoint could have us write to an address of this machine or of
its network. TLS certificates are verified. Of an answer only the status is read. What is said of a
failure never comes from the endpoint or from the libraries, whose words may have the address in
them.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import queue
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable
from typing import Any
from urllib.error import HTTPError, URLError

from gpu_engine.common.files import reason
from gpu_engine.common.programs import version
from gpu_engine.notify import bodies
from gpu_engine.notify.bodies import Post
from gpu_engine.notify.config import To
from gpu_engine.notify.messages import Message

SECONDS = 10.0
"""For one request in all, from looking up the host to the end of the answer's head."""
PAUSES = (1.0, 3.0)
"""Seconds between three tries."""
_LONGEST_PAUSE = 5.0
"""Seconds that an endpoint may ask for between two tries."""
COMMAND_SECONDS = 30.0
"""For a command."""
_GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL for a command's group."""
_OWN = ("GPU_PANEL_RUN", "GPU_PANEL_ATTEMPT")
"""A process with these counts as one of the run's ranks."""

Result = str | None
"""Why a message was not delivered; None: it was."""


def deliver(to: To, message: Message, *, sleep: Callable[[float], object] = time.sleep) -> Result:
    """Deliver `message` to `to`. Takes at most three times `SECONDS` and the pauses; a command
    gets `COMMAND_SECONDS`. Raises nothing."""
    try:
        if to.kind == "command":
            return _command(to.command, message)
        return _post(bodies.post(to, message), sleep)
    except Exception as err:  # noqa: BLE001  its text may have a secret in it
        return f"a fault of gpu-panel: {type(err).__name__}"


def deliver_all(to: Iterable[To], message: Message,
                done: Callable[[To, Result], object] = lambda to, result: None,
                ) -> list[tuple[To, Result]]:
    """Deliver `message` to all entries at once, each in a thread of its own, and return how that
    went, in their order. `done` is called with each as it is known, in this thread."""
    entries = list(to)
    known: queue.SimpleQueue[tuple[int, Result]] = queue.SimpleQueue()
    for number, entry in enumerate(entries):
        threading.Thread(target=lambda n=number, e=entry: known.put((n, deliver(e, message))),
                         daemon=True).start()
    results: dict[int, Result] = {}
    for _ in entries:
        number, result = known.get()
        results[number] = result
        done(entries[number], result)
    return [(entry, results[number]) for number, entry in enumerate(entries)]


# --- a request ----------------------------------------------------------------------------------

class _Failure(Exception):
    """A request failed: why, whether another try may help, and after how many seconds."""

    def __init__(self, why: str, *, again: bool, after: float | None = None) -> None:
        super().__init__(why)
        self.why, self.again, self.after = why, again, after


def _post(post: Post, sleep: Callable[[float], object]) -> Result:
    for number, pause in enumerate((*PAUSES, None), 1):
        try:
            _try(post)
        except _Failure as failure:
            if not failure.again or pause is None:
                return failure.why + (f", {number} times" if number > 1 else "")
            sleep(pause if failure.after is None else min(failure.after, _LONGEST_PAUSE))
        else:
            break
    return None


def _try(post: Post) -> None:
    """Send a request once. Raises _Failure.

    It is made in a thread that is left behind when time is up: looking up a host can't be
    interrupted, and a socket's own timeout begins anew with each byte of an answer that drips.
    """
    # Not SimpleQueue: in Python 3.11 and 3.12 its `get(timeout=…)` may wait for ever if a signal
    # comes just as the time is over (Modules/_queuemodule.c).
    answer: queue.Queue[tuple[int, str | None] | Exception] = queue.Queue()

    def work() -> None:
        try:
            answer.put(_request(post))
        except Exception as err:  # noqa: BLE001  handed to the caller
            answer.put(err)

    threading.Thread(target=work, daemon=True).start()
    try:
        got = answer.get(timeout=SECONDS)
    except queue.Empty:
        got = TimeoutError()
    if isinstance(got, Exception):
        raise _failure(got) from None
    status, after = got
    if status in range(300, 400):
        raise _Failure(f"the endpoint answered {status}, a redirect, which is never followed",
                       again=False)
    if status not in range(200, 300):
        raise _Failure(f"the endpoint answered {status}", again=status == 429 or status >= 500,
                       after=_seconds(after))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any
                         ) -> None:
        return None  # it is then answered as any other status


def _request(post: Post) -> tuple[int, str | None]:
    """The status of the answer, and its Retry-After. Through a proxy if the environment names
    one."""
    request = urllib.request.Request(post.url, post.body, {  # its scheme: see `config`
        "User-Agent": f"gpu-panel/{version()}", **post.headers})
    opener = urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(
        context=ssl.create_default_context()))
    try:
        with opener.open(request, timeout=SECONDS) as got:
            return got.status, None
    except HTTPError as err:
        with err:
            return err.code, err.headers.get("Retry-After")


def _failure(err: Exception) -> _Failure:
    """What an exception means, in our own words."""
    if isinstance(err, URLError) and isinstance(err.reason, Exception):
        err = err.reason
    if isinstance(err, TimeoutError):
        return _Failure(f"no answer within {SECONDS:.0f} s", again=False)
    if isinstance(err, ssl.SSLCertVerificationError):
        return _Failure("its certificate can't be verified", again=False)
    if isinstance(err, ssl.SSLError):
        return _Failure("no TLS connection could be made", again=False)
    if isinstance(err, socket.gaierror):
        return _Failure("its host can't be found", again=True)
    if isinstance(err, http.client.RemoteDisconnected):
        return _Failure("the endpoint closed the connection without an answer", again=True)
    if isinstance(err, OSError) and not err.errno:  # a proxy that refuses, in words of its own
        return _Failure("the proxy did not connect", again=False)
    if isinstance(err, OSError):
        return _Failure(reason(OSError(err.errno, os.strerror(err.errno or 0))), again=True)
    if isinstance(err, http.client.HTTPException):
        return _Failure("the endpoint's answer is not HTTP", again=False)
    return _Failure(f"a fault of gpu-panel: {type(err).__name__}", again=False)


def _seconds(text: str | None) -> float | None:
    """What Retry-After says, if it is a number of seconds."""
    return float(text) if text is not None and text.isascii() and text.isdigit() \
        and len(text) < 6 else None


# --- a command ----------------------------------------------------------------------------------

def _command(words: tuple[str, ...], message: Message) -> Result:
    """Run a command with the message as JSON on its standard input, and in its environment. What
    it prints is thrown away, as it may have secrets in it."""
    told = {k: v for k, v in os.environ.items() if k not in _OWN}
    for key, value in message.to_dict().items():
        if isinstance(value, list):
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
