"""pdb in a rank that has a terminal (`run.debug_rank`): the rank says while its debugger waits for
a person, Ctrl-C in the terminal opens it, and so does an exception that would end the rank.

Only what is public of pdb is used, so this holds for breakpoint(), pdb.set_trace(), IPython's
debugger and torch.distributed.breakpoint() alike. Standard library only.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from ...events import schema
from ...events.writer import append
from .standing import line_of

TERMINAL = "/dev/tty"


class _State:
    """Of this process."""

    installed = False
    waits = 0
    """How many debuggers wait, one within another."""


def has_terminal() -> bool:
    """Whether this process is in the rank that has the terminal: no other rank has one at all."""
    if "GPU_PANEL_DEBUG_RANK" not in os.environ:
        return False
    try:
        os.close(os.open(TERMINAL, os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def install(events: Path) -> None:
    """Follow pdb in this process. `events`: the rank's events file."""
    import pdb

    _State.installed = True
    interact, before = pdb.Pdb.interaction, sys.excepthook

    @functools.wraps(interact)
    def interaction(self: Any, *at: Any, **named: Any) -> Any:
        with _at_terminal(), _reported(events, _place(*at)):
            return interact(self, *at, **named)

    @functools.wraps(before)
    def excepthook(kind: Any, err: Any, trace: Any) -> None:
        before(kind, err, trace)
        post_mortem(err)

    setattr(pdb.Pdb, "interaction", interaction)  # noqa: B010 - a method of another's class
    sys.excepthook = excepthook
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _interrupted)


def post_mortem(err: BaseException | None) -> None:
    """Open the debugger where `err` was raised, if this rank has a terminal. A mistake that is told
    as such, and the end of a debugger, open none."""
    # By name: a script's rank has none of the engine, which UserError is of.
    if _State.installed and isinstance(err, Exception) and not any(
            kind.__name__ in ("UserError", "BdbQuit") for kind in type(err).__mro__):
        import pdb

        # As pdb prints: what goes to stderr here torch's own hook shows afterwards.
        sys.stdout.write("".join(traceback.format_exception_only(type(err), err)))
        pdb.post_mortem(err.__traceback__)


def _interrupted(number: int, frame: FrameType | None) -> None:
    """Ctrl-C: open the debugger where this rank is; at its prompt, end what was typed there."""
    import pdb

    if _State.waits:
        raise KeyboardInterrupt
    pdb.Pdb().set_trace(frame)


@contextlib.contextmanager
def _reported(events: Path, place: str) -> Iterator[None]:
    """Say that the debugger waits, and then that it no longer does. Another process may write to
    the same file: this may be a worker of a DataLoader."""
    _State.waits += 1
    with contextlib.suppress(OSError):
        append(events, schema.Debugger(place))
    try:
        yield
    finally:
        _State.waits -= 1
        with contextlib.suppress(OSError):
            append(events, schema.Debugger(None))


def _place(frame: FrameType | None = None, trace: Any = None, *_: Any) -> str:
    """The line of a frame; if there is a traceback, or an exception, as since Python 3.13: that
    where it was raised."""
    trace, line = getattr(trace, "__traceback__", trace), None
    while trace is not None:
        frame, line, trace = trace.tb_frame, trace.tb_lineno, trace.tb_next
    while frame is not None and frame.f_globals.get("__name__") == "torch.distributed":
        frame, line = frame.f_back, None  # its breakpoint() is called where a person looks
    if frame is None:
        return "an unknown line"
    return line_of(frame.f_code.co_filename, line or frame.f_lineno, frame.f_code.co_name)


@contextlib.contextmanager
def _at_terminal() -> Iterator[None]:
    """Give a child the terminal, as a worker of a DataLoader: its standard input is /dev/null, and
    its process group may not be the terminal's, which would suspend it as it reads."""
    if sys.stdin is not None and sys.stdin.isatty():
        yield
        return
    with open(TERMINAL) as terminal:  # noqa: PTH123 - its name is no path of ours
        number, before = terminal.fileno(), sys.stdin
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTTOU,))
        group = os.tcgetpgrp(number)
        os.tcsetpgrp(number, os.getpgrp())
        sys.stdin = terminal
        try:
            yield
        finally:
            sys.stdin = before
            os.tcsetpgrp(number, group)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
