"""The recorder of this process, where `gpu_engine.log` finds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class TakesMetrics(Protocol):
    """A recorder, as `gpu_engine.log` sees it."""

    def metric(self, values: Mapping[str, object]) -> None:
        """Record named values of the current step."""
        ...


recorder: TakesMetrics | None = None
"""The recorder of this process; None if the process is not a rank, or not yet."""
