"""`python between.py COMMAND…`: the way to a host, on which a test has something happen. The file
beside the host's home, HOME.does, says what:

    away             nobody gets there
    away after KIND  so from the request of this kind on, once it was answered
    cut KIND         the connection ends before such a request arrives
    mute KIND        such a request arrives, and nobody gets there before its answer comes back
    hold KIND        such a request arrives when the file is gone
    drop KIND        no answer of this kind comes
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

DOES = Path(os.environ["GPU_PANEL_HOME"] + ".does")
KINDS = {"start": b" run - ", "check": b" plan - ", "hello": b"--watch 1",
         "send code": b" receive ", "looked": b'"freedom"'}
"""What of the line there, or of its answer, says of which kind it is."""


def does() -> str:
    return DOES.read_text() if DOES.exists() else ""


def kind_of(what: str, data: bytes) -> bool:
    """Whether the test wants `what` at a message in `data`."""
    said = does()
    kind = KINDS.get(said.removeprefix(what).strip())
    return said.startswith(what) and kind is not None and kind in data


def end() -> None:
    os.write(1, b"Connection closed by remote host\n")
    child.kill()
    os._exit(255)


def answers() -> None:
    assert child.stdout is not None
    greeted = False  # a request is sent whole once the program there has said its wire
    for line in child.stdout:
        if muted and greeted:
            continue
        greeted = greeted or line.startswith(b"gpu-panel-wire ")
        if not kind_of("drop ", line):
            os.write(1, line)
    child.wait()
    if muted:
        DOES.write_text("away")
        end()
    os._exit(child.returncode)


if does() == "away":
    sys.exit(255)
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
assert child.stdin is not None
muted = False
threading.Thread(target=answers, daemon=True).start()
while data := os.read(0, 1 << 16):
    if kind_of("cut ", data):
        end()
    while kind_of("hold ", data):
        time.sleep(0.02)
    muted = muted or kind_of("mute ", data)
    if kind_of("away after ", data):  # before the answer, to which the next request comes at once
        DOES.write_text("away")
    child.stdin.write(data)
child.stdin.close()
time.sleep(60)
