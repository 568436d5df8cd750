"""Where `gpu_engine.log` finds the recorder of its process."""

from __future__ import annotations

from typing import Any, Protocol


class TakesMetrics(Protocol):
    """A recorder, as `gpu_engine.log` sees it."""

    def metric(self, values: dict[str, Any]) -> None:
        """Record named values of the present step."""
        ...


recorder: TakesMetrics | None = None
"""The recorder of this process; None: it is no rank, or not yet."""
