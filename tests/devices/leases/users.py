"""Real users: processes of other uids, which do what a test tells them in Python."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from gpu_engine.devices import leases

ALICE, BOB = 61001, 61002

_ACTOR = """
import ctypes, fcntl, json, os, pathlib, pwd, shutil, socket, stat, sys, time, traceback
from gpu_engine.devices import leases  # imported by root, who can read the code
from gpu_engine.devices.records import Device
from tests.devices.leases.users import Shared, make
import encodings.idna, random, resource, secrets, signal, _strptime
out = sys.stdout
uid = int(sys.argv[1])
os.umask(0o077)
os.setgroups([])
os.setgid(uid)
os.setuid(uid)
names = {k: v for k, v in globals().items() if k[:2] != "__"}
for line_ in sys.stdin:
    kind, code = json.loads(line_)
    try:
        value = eval(code, names) if kind == "ask" else exec(code, names)
        out.write(json.dumps(["ok", value]) + "\\n")
    except BaseException as error:
        out.write(json.dumps(["raised", f"{type(error).__name__}: {error}",
                              traceback.format_exc()]) + "\\n")
    out.flush()
"""


class Shared(NamedTuple):
    """A folder of all users."""

    path: Path

    @property
    def claims(self) -> Path:
        return self.path / "claims"

    @property
    def line(self) -> Path:
        return self.path / "line"


def make(folder: Path, said: dict[str, object], name: str = "") -> leases.Leases:
    """Make one file."""
    return leases.make([folder], said, name or f"{time.time_ns():019d}-{secrets.token_hex(4)}")


class User:
    """A process of one user."""

    def __init__(self, uid: int, env: dict[str, str] | None = None) -> None:
        self.uid = uid
        self._process = subprocess.Popen(
            [sys.executable, "-c", _ACTOR, str(uid)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, env=os.environ | (env or {}))

    @property
    def pid(self) -> int:
        return self._process.pid

    def do(self, code: str) -> None:
        """Execute statements; what they define stays."""
        self._say("do", code)

    def ask(self, code: str):
        """The value of an expression, as JSON can carry it."""
        return self._say("ask", code)

    def refused(self, code: str) -> str:
        """The error that the statements raise."""
        try:
            self._say("do", code)
        except UserRaised as error:
            return error.args[0]
        raise AssertionError(f"not refused: {code}")

    def _say(self, kind: str, code: str):
        self.send(kind, code)
        answer = json.loads(self._process.stdout.readline())
        if answer[0] == "raised":
            raise UserRaised(answer[1], answer[2])
        return answer[1]

    def send(self, kind: str, code: str) -> None:
        """Tell it without waiting for the answer."""
        self._process.stdin.write(json.dumps([kind, code]) + "\n")
        self._process.stdin.flush()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process.returncode is not None:
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class UserRaised(Exception):
    """What a user did raised an error: its type and text, and the traceback."""


@contextmanager
def users(*uids: int) -> Iterator[list[User]]:
    """Processes of these users, ended in the end."""
    there = [User(uid) for uid in uids]
    try:
        yield there
    finally:
        for user in there:
            user.kill()
