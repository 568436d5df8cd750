"""Asking NCCL itself why ranks stand still: its RAS service answers over TCP, in plain text.

From NCCL 2.24 on, one process of each machine's takes the connection and gathers the answer of all
ranks, while they hang. By default all runs of a machine would share port 28028, or, for another
user, have none: so each attempt gets its own (NCCL_RAS_ADDR). Commands and the answer's form:
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from itertools import pairwise

from gpu_engine.common.clean import clean

ADDRESS = "NCCL_RAS_ADDR"
_ASK = b"TIMEOUT 2\nVERBOSE STATUS\n"
"""The seconds that it waits for other processes, and the question."""
_MOST, _LINES = 1 << 18, 12
"""Bytes of an answer that are read, and lines of it that are told."""
_HEADINGS = ("Errors", "Warnings")


class Question:
    """One question, which is never waited for."""

    def __init__(self, address: str) -> None:
        """`address`: "127.0.0.1:PORT". Whoever listens there may not be NCCL, so its answer is text
        and no more."""
        host, _, port = address.rpartition(":")
        self._left, self._answer = _ASK, b""
        self.over = False
        """Whether no more of an answer comes."""
        self._socket = socket.socket()
        self._socket.setblocking(False)
        with self._closing():
            self._socket.connect((host, int(port)))

    def receive(self) -> bool:
        """Take what has come. Returns whether that is all."""
        with self._closing():
            while self._left:
                self._left = self._left[self._socket.send(self._left):]
            while not self.over:
                part = self._socket.recv(1 << 16)
                self._answer += part
                if not part or len(self._answer) > _MOST:
                    self.close()
        return self.over

    @contextlib.contextmanager
    def _closing(self) -> Iterator[None]:
        try:
            yield
        except BlockingIOError:
            pass
        except (OSError, ValueError, OverflowError):  # nobody listens: an older NCCL
            self.close()

    def close(self) -> None:
        """End it, whatever has come."""
        self.over = True
        self._socket.close()

    @property
    def words(self) -> str:
        """What the answer says is wrong, one line or several; "" if it says nothing."""
        return "\n".join(list(_problems(self._answer.decode(errors="replace")))[:_LINES])


def _problems(answer: str) -> Iterator[str]:
    """The lines below the headings of errors and warnings."""
    below = False
    for line, after in pairwise([*answer.splitlines(), ""]):
        if after and not after.strip("="):
            below = line.strip() in _HEADINGS
        elif below and line.strip("= "):
            yield clean(line.rstrip(), 200)
