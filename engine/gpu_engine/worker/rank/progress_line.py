"""A line of progress in the rank's log every two seconds, for people who read it without a
panel."""

from __future__ import annotations

import sys
import time

EVERY = 2.0
"""Seconds between two lines."""


class ProgressLine:
    """Prints the latest step, at most every two seconds and only if it is new."""

    def __init__(self) -> None:
        self._due = 0.0
        self._line: str | None = None

    def stepped(self, step: int, total: int | None, epoch: int, loss: float | None,
                lr: float | None, examples_per_s: float) -> None:
        """Note that step `step` of `total` (None: unknown) is done; `epoch` counts from 0."""
        of = f"/{total}" if total else ""
        shown = "?" if loss is None else f"{loss:.4f}"
        rate = "?" if lr is None else f"{lr:.3g}"
        self._line = (f"step {step}{of} epoch {epoch + 1} loss {shown} lr {rate} "
                      f"{_short(examples_per_s)} examples/s\n")

    def print_due(self) -> None:
        """Print a line, if the last one is two seconds old and a step was done since."""
        if self._line is None or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + EVERY
        line, self._line = self._line, None
        sys.stdout.write(line)
        sys.stdout.flush()


def _short(rate: float) -> str:
    return f"{rate / 1000:.1f}k" if rate >= 1000 else f"{rate:.0f}"
