"""Wraps functions of torch and of loggers, so that something of ours runs before and after them.

What a wrapped function gets, returns and raises does not change, and an error of ours is reported
to the observer. A traceback that the script prints itself may show the wrapper; one that ends the
script does not (`leave_out_ours`).
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

OURS = frozenset(map(str, Path(__file__).parent.glob("*.py")))
"""The paths of this package's files, as they stand in code objects."""
observer: Any = None
"""Is told of our errors, and says whether anything is observed (`off`). `install` sets it."""
_frames = torch._C._dynamo.eval_frame  # pyright: ignore[reportAttributeAccessIssue]
compiling = torch.compiler.is_dynamo_compiling
"""torch's function that torch.compile takes to be true in what it traces."""


def quietly(what: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What `what` returns. An error in it is reported and does not reach the script."""
    try:
        return what(*args, **kwargs)
    except Exception as err:  # noqa: BLE001 - never the script's problem
        observer.fault(err)
        return None


def around(function: Any, before: Callable[..., Any] | None = None,
           after: Callable[..., Any] | None = None, failed: Callable[..., Any] | None = None,
           ) -> Any:
    """`function`, with calls of ours around it: before(*args); after(what `before` returned, the
    result, *args), or failed(the same, the error, *args) if it raises."""
    before, after, failed = hidden(before), hidden(after), hidden(failed)

    @functools.wraps(function)
    def observed(*args: Any, **kwargs: Any) -> Any:
        # While torch.compile traces this, what follows would break its graph.
        if compiling() or observer.off:
            return function(*args, **kwargs)
        mark = None
        if before is not None:
            try:  # as `quietly` does: each call of ours takes microseconds of cold code
                mark = before(*args, **kwargs)
            except Exception as err:  # noqa: BLE001
                observer.fault(err)
        try:
            result = function(*args, **kwargs)
        except BaseException as err:
            if failed is not None:
                quietly(failed, mark, err, *args, **kwargs)
            raise
        if after is not None:
            try:
                after(mark, result, *args, **kwargs)
            except Exception as err:  # noqa: BLE001
                observer.fault(err)
        return result

    return passed_through(observed)


def method(owner: Any, name: str, before: Callable[..., Any] | None = None,
           after: Callable[..., Any] | None = None, failed: Callable[..., Any] | None = None,
           ) -> None:
    """Put `around` what `owner` has under this name."""
    setattr(owner, name, around(getattr(owner, name), before, after, failed))


def leave_out_ours(err: BaseException | None) -> None:
    """Remove our frames from the traceback of `err` and of the errors that caused it."""
    seen: set[int] = set()
    while err is not None and id(err) not in seen:
        seen.add(id(err))
        kept = []
        trace = err.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename not in OURS:
                kept.append(trace)
            trace = trace.tb_next
        for one, following in zip(kept, [*kept[1:], None]):
            one.tb_next = following
        err.__traceback__ = kept[0] if kept else None
        err = err.__cause__ or err.__context__


def calls_of_our_caller() -> int:
    """How often the function that called our code is on this thread's stack. Called from a step
    hook, that function is torch's wrapper around `Optimizer.step`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in OURS:
        frame = frame.f_back
    code, count = frame and frame.f_code, 0
    while frame is not None:
        count += frame.f_code is code
        frame = frame.f_back
    return count


def hidden(function: Callable[..., Any] | None) -> Any:
    """`function`, which is ours, so that torch.compile compiles neither it nor what it calls."""
    if function is None or hasattr(_frames, "set_code_exec_strategy"):
        return function and _left_out(function, "SKIP")
    return _without_dynamo(function, _frames.set_eval_frame)  # an older torch


def passed_through(function: Any) -> Any:
    """`function`, left out by torch.compile, but not what it calls: the script's code."""
    return _left_out(function, "DEFAULT")


def _left_out(function: Any, inside: str) -> Any:
    with contextlib.suppress(Exception):
        if hasattr(_frames, "set_code_exec_strategy"):
            action = _frames._FrameAction
            _frames.set_code_exec_strategy(function.__code__, _frames._FrameExecStrategy(
                action.SKIP, getattr(action, inside)))
        else:
            _frames.skip_code(function.__code__)
    return function


def _without_dynamo(function: Callable[..., Any],
                    set_eval_frame: Callable[[Any], Any]) -> Callable[..., Any]:
    """The function as it is without torch.compile, which compiles nothing while it runs."""
    def alone(*args: Any, **kwargs: Any) -> Any:
        before = set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        finally:
            set_eval_frame(before)

    return alone
