"""The output of a program while it runs, as a sheet over the screen."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import Log

from gpu_engine.common.clean import clean, clean_lines
from gpu_panel.common.clipboard import copy
from gpu_panel.common.dialogs import LETTERS, harmless

_LINES = 5000
"""The last lines that are kept."""
_READ = 1 << 16
"""Bytes at a time."""


class OutputScreen(ModalScreen[None]):
    """Runs a program and shows what it prints. Closing it ends the program and what it has started
    in its session."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *LETTERS,
        Binding("escape,q", "close", "close"), Binding("y", "copy", "copy")]

    def __init__(self, argv: Sequence[str], *, title: str = "",
                 environment: Mapping[str, str] | None = None) -> None:
        """`title`: the command as a person would type it, if that is not `argv`."""
        super().__init__()
        self._argv, self._environment = argv, environment
        self._title = title or shlex.join(argv)
        self.process: Process | None = None

    def compose(self) -> ComposeResult:
        box = Log(max_lines=_LINES, classes="sheet")
        box.border_title = harmless(f"$ {clean(self._title)}")
        yield box

    def on_mount(self) -> None:
        self._say("esc ends it")
        self.run_worker(self._run(), exit_on_error=False)

    def on_unmount(self) -> None:
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM)  # with what it has started

    def _say(self, text: str) -> None:
        self.query_one(Log).border_subtitle = harmless(text)

    async def _run(self) -> None:
        box = self.query_one(Log)
        try:
            self.process = await asyncio.create_subprocess_exec(
                *self._argv, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, start_new_session=True,
                env=dict(os.environ if self._environment is None else self._environment))
        except OSError as err:
            self._say(f"can't be started: {err.strerror} · esc close")
            return
        assert self.process.stdout is not None
        rest = b""
        while data := await self.process.stdout.read(_READ):
            whole, end, rest = (rest + data).rpartition(b"\n")
            if end or len(rest) > _READ:
                box.write_lines(clean_lines((whole or rest).decode(errors="replace")))
                rest = rest if end else b""
        if rest:
            box.write_lines(clean_lines(rest.decode(errors="replace")))
        code = await self.process.wait()
        self._say("y copy · esc close" if code == 0 else f"ended with {code} · y copy · esc close")

    def action_copy(self) -> None:
        """Copy what it has printed."""
        copy(self.app, "\n".join(self.query_one(Log).lines))

    def action_close(self) -> None:
        self.dismiss(None)
