"""How a rank of a person's own script ends: its uncaught exception, wherever Python or torch takes
it, and the stacks that somebody asks for."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import multiprocessing.util
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import script as observe_script

OURS = frozenset(str(Path(__file__).with_name(name)) for name in (
    "install.py", "calls.py", "script.py", "end.py"))
"""Files whose frames may stand between those of a script."""


def watch(observer: observe_script.Observer) -> None:
    """Hear of what ends this rank. Its own hooks still have the last word, and print as before."""
    before, in_thread = sys.excepthook, threading.excepthook

    @functools.wraps(before)
    def excepthook(kind: Any, err: Any, trace: Any) -> None:
        _saw(observer, err)
        before(kind, err, err.__traceback__ if err is not None else trace)

    @functools.wraps(in_thread)
    def thread_excepthook(about: Any) -> None:
        if vars(observer.here):  # it was this thread that trained
            _saw(observer, about.exc_value)
        in_thread(about)

    sys.excepthook, threading.excepthook = excepthook, thread_excepthook
    with contextlib.suppress(Exception):  # not the main thread, or stderr is no file
        if signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL:
            faulthandler.register(signal.SIGUSR2, all_threads=True)
    with contextlib.suppress(Exception):
        # A child of multiprocessing ends without atexit and without an excepthook, but runs its
        # finalizers, while the exception is still on its way out.
        if multiprocessing.parent_process() is not None:
            multiprocessing.util.Finalize(None, _child_ends, (observer,), exitpriority=-1000)


def _child_ends(observer: observe_script.Observer) -> None:
    err, status = sys.exc_info()[1], None
    if isinstance(err, SystemExit):
        err, status = _spawned(err), err.code
    if isinstance(err, Exception):
        _saw(observer, err)
    try:
        observer.finish(failed=bool(status))
    except Exception as fault:  # noqa: BLE001 - never the script's problem
        observer.fault(fault)


def _saw(observer: observe_script.Observer, err: BaseException | None) -> None:
    with contextlib.suppress(Exception):
        _without_us(err)
        observer.failed(err)


def _spawned(end: SystemExit) -> BaseException | None:
    """The exception that torch.multiprocessing.spawn has written down for its parent before it
    ended the process; None: the script itself did that."""
    trace = end.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    wrap = getattr(sys.modules.get("torch.multiprocessing.spawn"), "_wrap", None)
    code = getattr(wrap, "__code__", None)
    return end.__context__ if trace is not None and trace.tb_frame.f_code is code else None


def _without_us(err: BaseException | None) -> None:
    """Take our own frames out of a traceback that is about to be printed."""
    seen: set[int] = set()
    while err is not None and id(err) not in seen:
        seen.add(id(err))
        while err.__traceback__ is not None and _ours(err.__traceback__):
            err.__traceback__ = err.__traceback__.tb_next
        trace = err.__traceback__
        while trace is not None:
            while trace.tb_next is not None and _ours(trace.tb_next):
                trace.tb_next = trace.tb_next.tb_next
            trace = trace.tb_next
        err = err.__cause__ or err.__context__


def _ours(trace: Any) -> bool:
    return trace.tb_frame.f_code.co_filename in OURS
