"""Tells when the last gradient of a backward pass is there. What DistributedDataParallel's backward
pass takes after that, it waits for the other ranks, or for the averages to be exchanged.

Which gradient is the last is learned in the first passes; only its parameter keeps a hook then. The
order of a pass is that of the model's graph: if it changes from pass to pass, nothing is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

_PASSES = 4
"""As many passes must end with the same gradient."""


class LastGradient:
    """Calls a function when the last gradient of a pass is there, in the thread of the pass."""

    def __init__(self, parameters: Iterable[Any], tell: Callable[[], None]) -> None:
        """`parameters`: those of the model; of those that need no gradient, nothing is expected."""
        self._tell = tell
        self._handles: dict[int, Any] = {}
        self._seen: list[int] = []
        self._lasts: list[int] = []
        for number, parameter in enumerate(p for p in parameters if p.requires_grad):
            self._handles[number] = parameter.register_post_accumulate_grad_hook(
                lambda _, number=number: self._came(number))

    def _came(self, number: int) -> None:
        if len(self._handles) > 1:
            if number in self._seen:
                self._passed()
            self._seen.append(number)
        if self._handles:
            self._tell()

    def _passed(self) -> None:
        """Another pass has begun."""
        self._lasts.append(self._seen[-1])
        self._seen = []
        if len(set(self._lasts)) > 1:
            self._drop_all_but(None)
        elif len(self._lasts) == _PASSES:
            self._drop_all_but(self._lasts[0])

    def _drop_all_but(self, kept: int | None) -> None:
        for number in [n for n in self._handles if n != kept]:
            self._handles.pop(number).remove()
