"""A terminal with `gpu-engine attach` in it, for tests: what is typed and what is shown."""

from __future__ import annotations

import codecs
import os
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from typing import Any

from gpu_engine.runs.folder import Run

from .conftest import patience


class Attached:
    """`gpu-engine attach RUN` in a pseudo-terminal of its own."""

    def __init__(self, run: Run, *more: str, size: tuple[int, int] = (24, 80),
                 argv: Sequence[str] = ()) -> None:
        self.ours, self.theirs = os.openpty()
        termios.tcsetwinsize(self.ours, size)
        self.before = termios.tcgetattr(self.theirs)
        self.shown, self._decode = "", codecs.getincrementaldecoder("utf-8")("replace").decode
        self.process = subprocess.Popen(
            [*(argv or (sys.executable, "-m", "gpu_engine", "attach", run.id)), *more],
            stdin=self.theirs, stdout=self.theirs, stderr=self.theirs, start_new_session=True)

    def __enter__(self) -> Attached:
        return self

    def __exit__(self, *_: Any) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.ours)
        os.close(self.theirs)

    def sees(self, text: str) -> str:
        """Wait until this is shown. Returns what was shown up to there, and forgets it."""
        while text not in self.shown:
            self.shown += self.reads(text)
        seen, _, self.shown = self.shown.partition(text)
        return seen + text

    def reads(self, wanted: str) -> str:
        """What comes next."""
        end = time.monotonic() + patience()
        while True:
            over = self.process.poll() is not None
            ready, _, _ = select.select([self.ours], [], [], 0 if over else 0.5)
            if ready:
                return self._decode(os.read(self.ours, 65536))
            assert not over, f"{wanted!r} was not shown: {self.shown!r}"
            assert time.monotonic() < end, f"{wanted!r} was not shown: {self.shown!r}"

    def types(self, text: str) -> None:
        os.write(self.ours, text.encode())

    def says(self, text: str, answer: str) -> str:
        """Type a line, and wait for what it leads to."""
        self.types(f"{text}\r")
        return self.sees(answer)

    def leaves(self, key: str = "\x1d") -> None:
        """Detach; the terminal is as it was before."""
        self.types(key)
        self.sees("detached")
        self.ends(0)

    def ends(self, status: int | None = None) -> None:
        """Wait for its end. The terminal is as it was before."""
        ended = self.process.wait(patience())
        assert status in (None, ended), self.shown
        assert termios.tcgetattr(self.theirs) == self.before

    def kill(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
