"""What has been read of the runs that were looked at last, so that the screen that is opened next
need not read it again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpu_engine.runs.folder import Run
    from gpu_panel.compare.store import CompareStore
    from gpu_panel.run.store import RunStore
    from gpu_panel.sweep.store import SweepStore

MOST = 4
"""Runs that are remembered: a store takes up to some tens of MiB."""


class Stores:
    """Stores by what they are of. Their modules are imported when the first is made, as that takes
    longer than the first frame may."""

    def __init__(self) -> None:
        self._runs: dict[str, RunStore] = {}
        self._compared: CompareStore | None = None
        self._sweep: SweepStore | None = None

    def run(self, run: Run) -> RunStore:
        from gpu_panel.run.store import RunStore

        found = self._runs.pop(str(run.path), None) or RunStore(run)
        self._runs[str(run.path)] = found  # the last one looked at is the last to go
        while len(self._runs) > MOST:
            del self._runs[next(iter(self._runs))]
        return found

    def compared(self, runs: Sequence[Run]) -> CompareStore:
        """That of several runs, in the order in which they were first asked for."""
        from gpu_panel.compare.store import MOST as COMPARED
        from gpu_panel.compare.store import CompareStore

        paths = {run.path for run in runs[:COMPARED]}
        if self._compared is None or {one.run.path for one in self._compared.runs} != paths:
            self._compared = CompareStore(runs)
        return self._compared

    def sweep(self, sweep: str) -> SweepStore:
        from gpu_panel.sweep.store import SweepStore

        if self._sweep is None or self._sweep.sweep != sweep:
            self._sweep = SweepStore(sweep)
        return self._sweep
