"""What the panel uses of Textual that is not public: each with what it buys, and what happens
without it. No other file does (tests/panel/test_private_names.py)."""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Iterable
from functools import partial
from typing import Any

from textual import events
from textual.app import App
from textual.drivers import linux_driver
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message
from textual.timer import Timer

_KEY = re.compile(r"\x1b\[(\d*)(?::[\d:]*)?(?:;(\d*)(?::(\d*))?(?:;([\d:]*))?)?([u~ABCDEFHPQRS])")
"""A key of the kitty keyboard protocol: code point (: with shift, : on a US keyboard); modifiers:
event type; text; the last letter."""


def writes(driver: LinuxDriver) -> bool:
    """Whether the thread still runs that writes to the terminal; it ends where that has vanished.

    Buys: a panel that ends with a terminal that sends no SIGHUP. Without it, it would use a core
    for ever."""
    thread = driver._writer_thread
    return thread is not None and thread.is_alive()


def surely_rings(timer: Timer) -> Timer:
    """Have a timer ring also if the process lost the processor just as it began.

    A timer that begins more than its time late leaves that turn out, and one that rings once then
    never does (seen with more processes than cores). Buys: the size of the terminal, with which
    Textual's app waits 8 ms, so that no later size would count; and a launch screen that looks for
    devices, reviews what was typed and shows the preview at all."""
    timer._skip = False
    return timer


class Parser(linux_driver.XTermParser):  # pyright: ignore[reportPrivateImportUsage]
    """Textual's parser of what the terminal sends, which no bytes end.

    Buys: a panel that outlives its input. Textual 8.2.8's `_parse_extended_key` takes "1:1", the
    modifiers with an event type that Ghostty, kitty and tmux may send, "97:65", a key with its
    alternates, and a code point above 0x10FFFF for numbers that it can read, and raises ValueError
    in the thread that reads, which ends the app with a traceback; so does what is not UTF-8. Where
    Textual's method is gone, such keys raise again, and `feed` begins anew behind them."""

    def _parse_extended_key(  # pyright: ignore[reportIncompatibleVariableOverride]
            self, sequence: str) -> list[events.Key] | None:
        if (parts := _KEY.fullmatch(sequence)) is None:
            return super()._parse_extended_key(sequence)
        code, modifiers, event, text, end = (part or "" for part in parts.groups())
        if event == "3":
            return []  # it is let go
        plain = f"\x1b[{code};{modifiers or 1};{text}{end}" if text else \
            f"\x1b[{code};{modifiers}{end}" if modifiers else None
        try:
            keys = super()._parse_extended_key(plain or sequence) or []
        except (ValueError, OverflowError):
            return []
        # Half of a surrogate pair is no character, and could not be shown.
        return [key for key in keys if not re.search("[\ud800-\udfff]", key.key + (
            key.character or ""))] if keys or plain else None

    def feed(self, data: str) -> Iterable[Message]:
        try:
            yield from super().feed(data)
        except (ValueError, OverflowError, ArithmeticError, LookupError):
            super().__init__()


def read_anything() -> None:
    """Have Textual's driver read any bytes: by `Parser`, and what is not UTF-8 as U+FFFD."""
    module: Any = linux_driver
    module.XTermParser = Parser
    module.getincrementaldecoder = lambda name: partial(
        getincrementaldecoder(name), errors="replace")


class FailingApp(App[None]):
    """An app that says itself that it has failed.

    Buys: one line, and the traceback in panel.log. Without it a fault in a widget ends the panel
    with a screenful of local variables, and leaves nothing to send to us."""

    def failed(self, error: Exception) -> None:
        """Called after an exception outside an action. The widget that raised it is dead."""
        super()._handle_exception(error)

    def _handle_exception(self, error: Exception) -> None:
        if self.is_headless:  # in a test: let the test see it
            super()._handle_exception(error)
        else:
            self.failed(error)
