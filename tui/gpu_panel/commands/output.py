"""The output of a program while it runs, as a sheet over the screen."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Log

from gpu_engine.common.clean import clean, clean_lines
from gpu_panel.common.clipboard import copy
from gpu_panel.common.dialogs import LETTERS, harmless
from gpu_panel.common.rows import cells

_LINES = 5000
"""The last lines that are kept."""
_READ = 1 << 16


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
        self._printed: deque[str] = deque(maxlen=_LINES)
        """As they were printed; they are shown in the width of the screen."""

    def compose(self) -> ComposeResult:
        box = Log(max_lines=_LINES, classes="sheet")
        box.styles.scrollbar_gutter = "stable"  # lines keep their width when a scrollbar comes
        box.border_title = harmless(f"$ {clean(self._title)}")
        yield box

    def on_mount(self) -> None:
        self._subtitle("esc ends it")
        self.run_worker(self._run(), exit_on_error=False)

    def on_unmount(self) -> None:
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM)  # with what it has started

    def on_resize(self) -> None:
        self.call_after_refresh(self._wrap_again)

    def _wrap_again(self) -> None:
        self.query_one(Log).clear()
        self._write(self._printed)

    def _print(self, lines: Iterable[str]) -> None:
        fresh = list(lines)
        self._printed += fresh
        self._write(fresh)

    def _write(self, lines: Iterable[str]) -> None:
        box = self.query_one(Log)
        width = max(box.scrollable_content_region.width, 10)
        box.write_lines(part for one in lines for part in _wrapped(one, width))

    def _subtitle(self, text: str) -> None:
        self.query_one(Log).border_subtitle = harmless(text)

    async def _run(self) -> None:
        try:
            self.process = await asyncio.create_subprocess_exec(
                *self._argv, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, start_new_session=True,
                env=dict(os.environ if self._environment is None else self._environment))
        except OSError as err:
            self._subtitle(f"can't be started: {err.strerror} · esc close")
            return
        assert self.process.stdout is not None
        rest = b""
        while data := await self.process.stdout.read(_READ):
            whole, end, rest = (rest + data).rpartition(b"\n")
            if end or len(rest) > _READ:
                self._print(clean_lines((whole or rest).decode(errors="replace")))
                rest = rest if end else b""
        if rest:
            self._print(clean_lines(rest.decode(errors="replace")))
        code = await self.process.wait()
        ended = "" if code == 0 else f"ended with {code} · "
        self._subtitle(f"{ended}y copy · esc close")

    def action_copy(self) -> None:
        copy(self.app, "\n".join(self._printed))

    def action_close(self) -> None:
        self.dismiss(None)


def _wrapped(line: str, width: int) -> list[str]:
    """A line in parts of at most `width` cells, parted between words where that can be."""
    if cells(line) <= width:
        return [line]
    return [part.plain.rstrip() for part in Content(line).wrap(width)]
