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
        self.seen = 0
        """The first optimizer's steps at this one's last."""
        self.ref: Callable[[], Any] = lambda: None
        self.name = ""
        self.lr: float | None = None
        """The learning rate that the record was last told of."""


class Optimizers:
    """Those that step on losses of their own, in the order of their first such step."""

    def __init__(self) -> None:
        self._known: list[Optimizer] = []
        self.by_id: dict[int, Optimizer] = {}
        """Known ones by the optimizer's id, which may be another's by now."""

    def beside(self, one: Optimizer) -> bool:
        """Whether this step of one that is not the first leaves the first the first."""
        first = self._known[0]
        if one.seen == first.steps:
            one.since += 1
        else:
            one.seen, one.since = first.steps, 1
        return one.since <= _SUCCESSION

    def which(self, optimizer: Any, loss: Any) -> Optimizer | None:
        """The optimizer's place among those that step on losses of their own."""
        known = self._known
        one = self.by_id.get(id(optimizer))
        if one is None or one.ref() is not optimizer:
            one = next((o for o in known if o.ref() is None), None)
            if one is None:
                if known and loss is None:
                    return None  # it shares another's loss, as Muon beside Adam
                one = Optimizer(len(known))
                known.append(one)
            one.ref, one.name = weakref.ref(optimizer), type(optimizer).__name__
            self._index()
        first = known[0]
        if one is first:
            return one
        if loss is None:
            return None
        if self.beside(one):
            return one
        first.ref, one.ref = one.ref, first.ref
        first.name, one.name = one.name, first.name
        one.since = 0
        self._index()
        return first

    def _index(self) -> None:
        self.by_id = {id(o.ref()): o for o in self._known if o.ref() is not None}
