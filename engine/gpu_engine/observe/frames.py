"""Recognises our own frames on a script's stack, and takes them out of its tracebacks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

_UNSEEN = "<gpu-panel, as importlib._bootstrap>"
"""Warnings with a stack level pass over frames in whose file's name are the last two words."""
OURS = frozenset(map(str, Path(__file__).parent.glob("*.py"))) | {_UNSEEN}
"""The paths of this package's files, as they stand in code objects."""


def unseen(wrapper: Any) -> Callable[..., Any]:
    """Keep a function of ours that calls one of the script's or of torch's from being counted when
    a warning looks for its place. It has to take itself out of errors that pass through it, by
    `leave_out_ours` and a bare `raise`; before Python 3.11 it is seen there."""
    wrapper.__code__ = wrapper.__code__.replace(co_filename=_UNSEEN)
    return wrapper


def leave_out_ours(err: BaseException | None) -> None:
    """Remove our frames from the traceback of `err` and of the errors that caused it."""
    seen: set[int] = set()
    while err is not None and id(err) not in seen:
        seen.add(id(err))
        while err.__traceback__ is not None and _is_ours(err.__traceback__):
            err.__traceback__ = err.__traceback__.tb_next
        trace = err.__traceback__
        while trace is not None:
            while trace.tb_next is not None and _is_ours(trace.tb_next):
                trace.tb_next = trace.tb_next.tb_next
            trace = trace.tb_next
        err = err.__cause__ or err.__context__


def calls_of_our_caller() -> int:
    """How often the function that called our code is on this thread's stack. Called from a step
    hook, that function is torch's wrapper around `Optimizer.step`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in OURS:
        frame = frame.f_back
    if frame is None:
        return 0
    code, count = frame.f_code, 0
    while frame is not None:
        count += frame.f_code is code
        frame = frame.f_back
    return count


def _is_ours(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename in OURS
