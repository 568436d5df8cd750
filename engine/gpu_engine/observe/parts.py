"""Where the time of a script's steps goes, as far as it can be seen without a change to the script.

Seen are the moments at which it asks a DataLoader for a batch and gets it, at which `backward()`,
an optimizer's step, `torch.save` and known loggers begin and end, and at which the last gradient of
DistributedDataParallel is there. What lies between two of them is told by both:

- From a batch to its backward pass it is the forward pass, with what else the script does there.
- A batch that no backward pass follows before the same loader is asked again is of an evaluation.
- After a step and until the next batch it is the rest. Without a DataLoader nothing tells the rest
  from the forward pass, and both count as the rest.

Only the thread that trains is looked at: batches that another one reads ahead are not seen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ..worker.rank.step_parts import READY, STEP, StepParts
from . import wrap

ASKS, ASKS_AGAIN, BATCH, NO_BATCH = "asks", "asks again", "batch", "no batch"
"""A DataLoader is asked for a batch, another than before or the same; gives one; has no more."""
BACKWARD, BACK, OPTIMIZER, STEPPED = "backward", "back", "optimizer", "stepped"
"""A backward pass begins and ends; an optimizer's step begins, and ends where it is not `STEP`, a
step of the run."""
SAVES, SAVED = "saves", "saved"
"""Saving or logging begins and ends."""

_BEGINS = (BACKWARD, OPTIMIZER)
_STEPS = (STEP, STEPPED)
_ITERATIONS = 1000
"""Iterations whose loader is remembered."""


class ScriptParts(StepParts):
    """Sums up the parts of a script's steps."""

    mark = wrap.hidden(StepParts.mark)
    free = (STEP,)  # after a batch, `batch.to(device)` waits, unless it is asked not to

    def __init__(self) -> None:
        super().__init__(known=("backward", "optimizer"))
        self.loads = False
        self.loader: Any = None
        """The id of the iteration that was asked for a batch last."""
        self.loading: int | None = None
        """How many workers that has."""
        self._open = 0.0
        """Seconds since the last mark that is neither saving nor logging."""
        self._wait = 0.0
        """Seconds for which the last batch was waited for, as long as it is not known what for."""
        self._evaluates = False
        self._before = ""

    def here(self, kind: str) -> None:
        """`mark`, if this is the thread that trains."""
        if threading.get_ident() == self.thread:
            self.mark(kind)

    def _begin_anew(self, kind: str) -> None:
        self._before, self._open = kind, 0.0

    def _spend(self, kind: str, gap: float) -> None:
        if self._kind == SAVES:
            self._add("save", gap)
            return
        self._open += gap
        if kind in (SAVES, SAVED):
            return
        gap, self._open = self._open, 0.0
        before, self._before = self._before, kind
        if before == BACKWARD:
            self._passes += 1
        if kind == READY and before != READY:
            self._ready += 1
        if before == BATCH:
            self._after_batch(kind, gap)
        elif kind == BATCH:
            self._wait = gap
        else:
            self._add(self._part(before, kind), gap)

    def _after_batch(self, kind: str, gap: float) -> None:
        """Add the time since a batch came, and that for which it was waited."""
        wait, self._wait = self._wait, 0.0
        # Batches before the first that is trained on are passed over, as at a resume.
        self._evaluates = kind == ASKS_AGAIN and self.loads
        if kind in _BEGINS:
            self.loads = True
            self._known |= {"data", "forward"}
            self._add("data", wait)
            self._add("forward", gap)
        else:
            self._add("eval" if self._evaluates else "other", wait + gap)

    def _part(self, before: str, kind: str) -> str:
        """What the time between two marks was spent on, the first of which is no batch."""
        if kind == READY or (before == BACKWARD and kind == BACK):
            return "backward"
        if before == READY:
            return READY if kind == BACK else "backward"
        if kind == NO_BATCH:
            return "eval" if self._evaluates else "data"
        if kind in _STEPS or (before == BACK and kind == OPTIMIZER):
            return "optimizer"  # between them gradients are clipped
        if kind == BACKWARD and (before in (BACK, OPTIMIZER) or (before in _STEPS and self.loads)):
            return "forward"  # of another pass, in a step's closure, of a second optimizer
        return "other"


def watch_loader(loader: Any, parts_now: Callable[[], ScriptParts | None],
                 loaded: Callable[[int, Any], None]) -> Callable[[Any, Any], None]:
    """A function that is told each `DataLoader` and the new iteration over it. The class of such an
    iteration is watched from when it is first seen. `loaded` gets the id of the loader, and each
    batch."""
    watched: set[type] = set()
    loaders: dict[int, tuple[int, int]] = {}
    """By the id of the iteration: the loader's id, and how many workers it has."""

    def began(source: Any, iteration: Any) -> None:
        if len(loaders) > _ITERATIONS:
            loaders.clear()
        loaders[id(iteration)] = id(source), source.num_workers
        cls = next(c for c in type(iteration).__mro__ if "__next__" in vars(c))
        if cls not in watched and cls.__module__ == loader.__module__:
            watched.add(cls)
            wrap.method(cls, "__next__", asked, given,
                        lambda parts, *_: parts and parts.mark(NO_BATCH))

    def asked(iteration: Any) -> ScriptParts | None:
        parts = parts_now()
        if parts is None or threading.get_ident() != parts.thread:
            return None
        parts.mark(ASKS_AGAIN if parts.loader == id(iteration) else ASKS)
        parts.loader = id(iteration)
        _, parts.loading = loaders.get(parts.loader, (0, None))
        return parts

    def given(parts: ScriptParts | None, batch: Any, iteration: Any) -> None:
        if parts is not None:
            parts.mark(BATCH)
        loaded(loaders.get(id(iteration), (0, 0))[0], batch)

    return began
