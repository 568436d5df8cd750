"""Which of a script's optimizers is which: the first one's steps are the run's steps."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

_SUCCESSION = 50  # steps of another optimizer without one of the first


class Optimizer:
    """An optimizer as it is known here."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.steps = 0
        self.since = 0
        """Steps since the first optimizer's last one."""
        self.ref: Callable[[], Any] = lambda: None
        self.name = ""


_NONE = Optimizer(0)


class Optimizers:
    """Those that step on losses of their own, in the order of their first such step."""

    def __init__(self) -> None:
        self._known: list[Optimizer] = []
        self.last = _NONE
        """The first optimizer, while no other steps."""

    def which(self, optimizer: Any, loss: Any) -> Optimizer | None:
        """The optimizer's place among those that step on losses of their own."""
        known = self._known
        self.last = _NONE
        for one in known:
            if one.ref() is optimizer:
                break
        else:
            one = next((o for o in known if o.ref() is None), None)
            if one is None:
                if known and loss is None:
                    return None  # it shares another's loss, as Muon beside Adam
                one = Optimizer(len(known))
                known.append(one)
            one.ref, one.name = weakref.ref(optimizer), type(optimizer).__name__
        first = known[0]
        if one is first:
            for other in known:
                other.since = 0
            self.last = one
        elif loss is None:
            return None
        else:
            one.since += 1
            if one.since > _SUCCESSION:
                first.ref, one.ref = one.ref, first.ref
                first.name, one.name = one.name, first.name
                one.since = 0
                return first
        return one
