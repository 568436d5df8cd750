"""A script run by a shell on a host, for what needs no agent: its output and time are bounded."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from gpu_engine.remote.reach import reasons, ssh
from gpu_engine.remote.reach.channel import Unreachable
from gpu_engine.remote.reach.records import BadName, Host

_SAID = 16 << 10
"""The end of what comes on standard error, as much as is kept."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of it."""

    out: str
    err: str
    code: int | None
    """None: it did not end in time, or printed too much, and was ended."""
    cut: bool = False
    """Whether it printed more than was allowed."""


def run(host: Host, script: bytes, seconds: float, *, most: int = 1 << 20,
        on_line: Callable[[str], None] | None = None) -> Ran:
    """Have `script` run by `sh` there, within `seconds`, with at most `most` bytes of output.
    `on_line` gets each line as it comes. Raises OSError, BadName."""
    end = time.monotonic() + seconds
    if host.is_local:
        return _run(["sh", "-s"], script, end, most, on_line)
    ran = _run(ssh.shell(host), script, end, most, on_line)
    if reasons.share_ended(ran.err, ran.code):
        ran = _run(ssh.shell(host, shared=False), script, end, most, on_line)
    return ran


def answer(host: Host, word: str, script: bytes, seconds: float, *, most: int,
           on_line: Callable[[str], None] | None = None) -> tuple[str, Ran]:
    """`run` a script that first prints `word` on a line of its own: what it has printed behind
    that, and how it ended. Raises Unreachable."""
    try:
        ran = run(host, script, seconds, most=most, on_line=on_line)
    except (OSError, BadName) as err:
        raise Unreachable(host.name, str(err)) from None
    _, mark, out = ran.out.partition(f"{word}\n")
    if not mark:
        raise Unreachable(host.name, reasons.why(host, ran.err, ran.code, greeted=False))
    return out, ran


def _run(argv: list[str], script: bytes, end: float, most: int,
         on_line: Callable[[str], None] | None) -> Ran:
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, bufsize=0, env=ssh.environment(),
                               start_new_session=True)
    said = bytearray()
    threads = [threading.Thread(target=_write, args=(process, script), daemon=True),
               threading.Thread(target=_collect, args=(process, said), daemon=True)]
    for thread in threads:
        thread.start()
    try:
        out, whole = _read(process, end, most, on_line)
        code = None
        if whole:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(10)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
    threads[1].join(1)  # a connection that ssh keeps open may hold the pipe
    return Ran(out.decode("utf-8", "replace"), bytes(said).decode("utf-8", "replace"), code,
               len(out) > most)


def _read(process: subprocess.Popen[bytes], end: float, most: int,
          on_line: Callable[[str], None] | None) -> tuple[bytes, bool]:
    """What it prints, and whether that came to its end in time."""
    assert process.stdout is not None
    out, told = bytearray(), 0
    with process.stdout, selectors.DefaultSelector() as ready:
        ready.register(process.stdout, selectors.EVENT_READ)
        while (left := end - time.monotonic()) > 0 and len(out) <= most:
            if not ready.select(left):
                continue
            got = os.read(process.stdout.fileno(), 1 << 16)
            out += got
            while on_line is not None and (at := out.find(b"\n", told)) >= 0:
                on_line(out[told:at].decode("utf-8", "replace"))
                told = at + 1
            if not got:
                return bytes(out), True
    return bytes(out), False


def _write(process: subprocess.Popen[bytes], script: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError), process.stdin as pipe:
        view = memoryview(script)
        while view:
            view = view[pipe.write(view):]


def _collect(process: subprocess.Popen[bytes], said: bytearray) -> None:
    assert process.stderr is not None
    with contextlib.suppress(OSError, ValueError), process.stderr as pipe:
        while got := pipe.read(8192):
            said += got
            del said[:-_SAID]
