"""What an ordinary step on the CPU needs of the observer, in one small object.

After a step's own work, nothing of ours is left in the processor's caches: most of what observing
costs is fetching it again. So nearly all steps take a short way through the hooks of `install`,
which reads little else than this object. It may be taken by one thread, that of the latest step.
Everything out of the ordinary (another thread, a step within a step, a closure, a GPU, a scaler)
goes the long way, through the methods of `Observer`, which closes the short one. The end of the
next ordinary step opens it again.
"""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable
from typing import Any

from .optimizers import Optimizer

# The phases of a script's rank. They are compared by identity.
RUNNING = "running"
BACKWARD = "backward"
OPTIMIZER = "optimizer"


class ShortWay:
    """Open or closed; and the step that is under way on it."""

    __slots__ = ("append", "by_id", "inside", "loss", "optimizer", "phase", "thread")

    def __init__(self) -> None:
        self.phase = "init"
        """What the process is doing, on either way."""
        self.thread = 0
        """The thread that may take it; 0 while it is closed."""
        self.inside = 0
        """The thread that has begun an optimizer step on it; 0 if none has."""
        self.loss: float | None = None
        """The sum of the losses since the last step. None: there was none."""
        self.optimizer = Optimizer(0)
        """The one that has stepped last."""
        self.by_id: dict[int, Optimizer] = {}
        """All that are known, as in `Optimizers`."""
        self.append: Callable[[Any], None] = lambda item: None
        """Adds a step to the recorder's queue."""

    def open(self, optimizer: Optimizer, by_id: dict[int, Optimizer],
             append: Callable[[Any], None]) -> None:
        """Open it for the current thread, unless another one is inside a step on it."""
        if not self.inside:
            self.optimizer, self.by_id, self.append = optimizer, by_id, append
            self.thread = get_ident()

    def close(self) -> float | None:
        """Close it. Returns the loss that was added up on it and has had no step so far."""
        self.thread = 0
        loss, self.loss = self.loss, None
        return loss

    def leave(self) -> bool:
        """Whether the current thread has begun a step on it, which then is taken to have begun on
        the long way."""
        if self.inside != get_ident():
            return False
        self.inside = 0
        return True
