"""A script run by a shell on a host, for what needs no agent: its output and time are bounded."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

from gpu_engine.common.procs import readable
from gpu_engine.remote.reach import reasons, ssh
from gpu_engine.remote.reach.channel import Unreachable
from gpu_engine.remote.reach.records import BadName, Host


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of it."""

    out: str
    """What it printed, errors among it."""
    code: int | None
    """None: it did not end in time, or printed too much, and was ended."""


def run(host: Host, script: bytes, seconds: float, *, most: int = 1 << 20,
        on_line: Callable[[str], None] | None = None) -> Ran:
    """Have `script` run by `sh` there, within `seconds`, with at most `most` bytes of output.
    `on_line` gets each line as it comes. Raises OSError, BadName."""
    end = time.monotonic() + seconds
    ran = _run(ssh.shell(host), script, end, most, on_line)
    if reasons.share_ended(ran.out, ran.code):
        ran = _run(ssh.shell(host, shared=False), script, end, most, on_line)
    return ran


def _run(argv: list[str], script: bytes, end: float, most: int,
         on_line: Callable[[str], None] | None) -> Ran:
    with tempfile.TemporaryFile() as told:
        told.write(ssh.ENTER + script)
        told.seek(0)
        process = subprocess.Popen(argv, stdin=told, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, bufsize=0, env=ssh.environment(),
                                   start_new_session=True)
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
    return Ran(out.decode("utf-8", "replace"), code)


def answer(host: Host, word: str, script: bytes, seconds: float, *, most: int,
           on_line: Callable[[str], None] | None = None) -> Ran:
    """`run` a script that first prints `word` on a line of its own: what it has printed behind
    that, and how it ended. Raises Unreachable."""
    try:
        ran = run(host, script, seconds, most=most, on_line=on_line)
    except (OSError, BadName) as err:
        raise Unreachable(host.name, str(err)) from None
    _, mark, out = ran.out.partition(f"{word}\n")
    if not mark:
        raise Unreachable(host.name, reasons.why(host, ran.out, ran.code, greeted=False))
    return Ran(out, ran.code)


def _read(process: subprocess.Popen[bytes], end: float, most: int,
          on_line: Callable[[str], None] | None) -> tuple[bytes, bool]:
    """What it prints, and whether that came to its end in time."""
    assert process.stdout is not None
    out, told = bytearray(), 0
    with process.stdout:
        fd = process.stdout.fileno()
        while (left := end - time.monotonic()) > 0 and len(out) <= most:
            ended = process.poll() is not None  # before reading, so that all it wrote is read
            got = os.read(fd, 1 << 16) if readable(fd, min(left, 0.5)) else None
            if not got and (got is not None or ended):
                return bytes(out), True  # or a connection that ssh keeps holds the pipe
            out += got or b""
            while on_line is not None and (at := out.find(b"\n", told)) >= 0:
                on_line(out[told:at].decode("utf-8", "replace"))
                told = at + 1
    return bytes(out), False
