"""The output of a program while it runs, as a sheet over the screen."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import RichLog

from gpu_engine.common.clean import clean, clean_lines
from gpu_panel.common.clipboard import copy
from gpu_panel.common.dialogs import LETTERS, harmless

_LINES = 5000
"""The last lines that are kept."""
_READ = 1 << 16


class OutputScreen(ModalScreen[None]):
    """Runs a program and shows what it prints. Closing it ends the program and what it has started
    in its session."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *LETTERS,
        Binding("escape,q", "close", "close"), Binding("y", "copy", "copy")]

    def __init__(self, argv: Sequence[str], *, title: str,
                 environment: Mapping[str, str]) -> None:
        """`title`: the command as a person would type it."""
        super().__init__()
        self._argv, self._title, self._environment = argv, title, environment
        self.process: Process | None = None
        self._printed: deque[str] = deque(maxlen=_LINES)

    def compose(self) -> ComposeResult:
        box = RichLog(max_lines=_LINES, wrap=True, min_width=10, classes="sheet")
        box.border_title = harmless(f"$ {clean(self._title)}")
        yield box

    def on_mount(self) -> None:
        self._subtitle("esc ends it")
        self.run_worker(self._run(), exit_on_error=False)

    def on_unmount(self) -> None:
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM)  # with what it has started

    def _print(self, data: bytes) -> None:
        for line in clean_lines(data.decode(errors="replace")):
            self._printed.append(line)
            self.query_one(RichLog).write(line)

    def _subtitle(self, text: str) -> None:
        self.query_one(RichLog).border_subtitle = harmless(text)

    async def _run(self) -> None:
        try:
            self.process = await asyncio.create_subprocess_exec(
                *self._argv, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, start_new_session=True,
                env=dict(self._environment))
        except OSError as err:
            self._subtitle(f"can't be started: {err.strerror} · esc close")
            return
        assert self.process.stdout is not None
        rest = b""
        while data := await self.process.stdout.read(_READ):
            whole, end, rest = (rest + data).rpartition(b"\n")
            if end or len(rest) > _READ:
                self._print(whole or rest)
                rest = rest if end else b""
        if rest:
            self._print(rest)
        code = await self.process.wait()
        ended = "" if code == 0 else f"ended with {code} · "
        self._subtitle(f"{ended}y copy · esc close")

    def action_copy(self) -> None:
        copy(self.app, "\n".join(self._printed))

    def action_close(self) -> None:
        self.dismiss(None)
