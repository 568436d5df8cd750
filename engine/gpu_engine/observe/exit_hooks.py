"""Observes how a rank of a person's own script ends: catches the exception that ends it, in the
main thread, in other threads and in child processes; writes what is left before `os._exit`. Also
makes SIGUSR2 print all stacks, and a crash in native code before it ends the process."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import gc
import multiprocessing.util
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from ..common.files import json_inside
from ..worker.rank.process import write_files
from . import wrap
from .observer import Observer


def add(observer: Observer) -> None:
    """Tell `observer` which exception ends this rank. The script's own hooks are called after that
    and print as before."""
    before, in_thread = sys.excepthook, threading.excepthook

    @functools.wraps(before)
    def excepthook(kind: Any, err: Any, trace: Any) -> None:
        _failed(observer, err)
        before(kind, err, err.__traceback__ if err is not None else trace)

    @functools.wraps(in_thread)
    def thread_excepthook(about: Any) -> None:
        if observer.trains() or vars(observer.elsewhere):  # this thread has trained
            _failed(observer, about.exc_value)
        in_thread(about)

    leave = os._exit

    @functools.wraps(leave)
    def _exit(status: int) -> None:
        try:
            with contextlib.suppress(Exception):
                observer.finish(failed=status != 0, status=status)
        finally:
            leave(status)

    sys.excepthook, threading.excepthook = excepthook, thread_excepthook
    os._exit = _exit
    print_stacks()
    with contextlib.suppress(Exception):  # stderr is no file
        if not faulthandler.is_enabled():
            faulthandler.enable()
    with contextlib.suppress(Exception):
        # A child of multiprocessing calls neither atexit functions nor the excepthook. But it runs
        # its finalizers while the exception is being handled.
        if multiprocessing.parent_process() is not None:
            multiprocessing.util.Finalize(None, _child_ends, (observer,), exitpriority=-1000)


def print_stacks() -> None:
    """Have SIGUSR2 print all stacks from now on."""
    with contextlib.suppress(Exception):  # not the main thread, or stderr is no file
        if signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL:
            faulthandler.register(signal.SIGUSR2, all_threads=True)


def ends(observer: Observer) -> None:
    """Called when the interpreter ends, after all else that is registered with atexit."""
    wrap.quietly(observer.finish)
    wrap.quietly(_hurry, observer.run)


def _hurry(run: Path) -> None:
    """Have Python end soon if the run is being stopped: it would take torch's modules apart, object
    by object, for half a second. What it would do besides stays, with one exception: objects that
    refer to each other in a circle are not finalized. So files that they hold are written here."""
    state = json_inside(run, "state.json")
    if isinstance(state, dict) and state.get("state") == "stopping":
        write_files()
        gc.freeze()


def _child_ends(observer: Observer) -> None:
    err, status = sys.exc_info()[1], None
    if isinstance(err, SystemExit):
        err, status = _error_of_spawn(err), err.code
    if isinstance(err, Exception):
        _failed(observer, err)
    try:
        observer.finish(failed=bool(status))
    except Exception as fault:  # noqa: BLE001 - never the script's problem
        observer.fault(fault)


def _failed(observer: Observer, err: BaseException | None) -> None:
    with contextlib.suppress(Exception):
        wrap.leave_out_ours(err)
        observer.failed(err)


def _error_of_spawn(end: SystemExit) -> BaseException | None:
    """The exception that torch.multiprocessing.spawn passed on to the parent process before it
    ended this one with `end`; None if the script itself raised `end`."""
    trace = end.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    wrap = getattr(sys.modules.get("torch.multiprocessing.spawn"), "_wrap", None)
    code = getattr(wrap, "__code__", None)
    return end.__context__ if trace is not None and trace.tb_frame.f_code is code else None
