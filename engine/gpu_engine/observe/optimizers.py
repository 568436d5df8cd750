"""Which of a script's optimizers is which, by number, in the order of their first steps."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple


class Optimizer:
    """An optimizer as it is known here."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.ref: Callable[[], Any] = lambda: None
        self.name = ""
        self.lr: float | None = None
        """The learning rate that the record was last told of."""
        self.stepped: Any = None
        """The parameter groups that the present update has reached: their ids, or that of the
        first alone; None: no loss was ever seen to go with its steps."""


class Which(NamedTuple):
    """One step's optimizer."""

    one: Optimizer
    fresh: frozenset[int] | None
    """Where it is another than the one that had this number before: the numbers that live."""


class Optimizers:
    """Those that step on losses of their own."""

    def __init__(self) -> None:
        self._known: list[Optimizer] = []
        self.by_id: dict[int, Optimizer] = {}
        """Known ones by the optimizer's id, which may be another's by now."""

    def which(self, optimizer: Any, loss: Any) -> Which | None:
        """Whose step it is. None: it is no step of its own, as it goes with a loss that another
        stepped on (Muon beside Adam), or is a further part of the same update (DeepSpeed steps
        once for each group of parameters)."""
        one, fresh = self.by_id.get(id(optimizer)), None
        if one is None or one.ref() is not optimizer:
            if loss is None and any(o.stepped is not None for o in self._known):
                return None
            one = self._free(type(optimizer).__name__)
            one.ref, one.name = weakref.ref(optimizer), type(optimizer).__name__
            one.lr = one.stepped = None
            self.by_id = {id(o.ref()): o for o in self._known if o.ref() is not None}
            fresh = frozenset(o.index for o in self._known
                              if o is not one and o.ref() is not None)
        groups = {id(group) for group in optimizer.param_groups}
        if loss is None and one.stepped is not None:
            before = one.stepped if isinstance(one.stepped, set) else {one.stepped}
            if not before & groups:
                one.stepped = before | groups
                return None
        if loss is not None or one.stepped is not None:
            one.stepped = groups
        return Which(one, fresh)

    def by_hand(self) -> Optimizer:
        """Updates without an optimizer, as one that is no more once a real one steps."""
        one = self._free("by hand")
        one.name = "by hand"
        return one

    def _free(self, name: str) -> Optimizer:
        """A number whose optimizer is no more, rather one of the same kind; else a new one."""
        gone = [o for o in self._known if o.ref() is None]
        one = next((o for o in gone if o.name == name), gone[0] if gone else None)
        if one is None:
            one = Optimizer(len(self._known))
            self._known.append(one)
        return one
