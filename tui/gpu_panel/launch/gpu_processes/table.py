"""A list of processes on GPUs, to sort them and to end one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from textual import work

from gpu_panel.common.errors import guard
from gpu_panel.common.rows import Rows
from gpu_panel.launch.gpu_processes.lines import GpuProcess
from gpu_panel.launch.runs.line import RunLine

if TYPE_CHECKING:
    from gpu_panel.commands.own import Values

Runs = Callable[[], Sequence[RunLine]]
Stop = Callable[[RunLine, str], object]


class ProcessTable(Rows):
    """Rows of which some are processes. A subclass fills `found` when it paints."""

    CHANGES: ClassVar[frozenset[str]] = frozenset({"end"})
    ORDERS: ClassVar[Sequence[str]]
    """In which its processes can be sorted."""

    def __init__(self, runs: Runs, stop: Stop, *, id: str) -> None:
        """`runs`: those whose ranks are named. `stop`: asks, with a title, whether to stop one."""
        super().__init__(id=id)
        self.runs, self._stop = runs, stop
        self.order = self.ORDERS[0]
        self.found: list[GpuProcess] = []

    def paint(self) -> None:
        raise NotImplementedError

    @property
    def at_cursor(self) -> GpuProcess | None:
        """The process under the cursor; None if there is none."""
        return next((p for p in self.found if p.key == self.key_at_cursor), None)

    def placeholders(self) -> Values:
        """For the person's own commands."""
        from gpu_panel.commands.own import of_process

        at = self.at_cursor
        return of_process(at.process.pid, at.host) if at is not None else {}

    def action_order(self) -> None:
        """Sort in the next way, and go to the first process."""
        self.order = self.ORDERS[(self.ORDERS.index(self.order) + 1) % len(self.ORDERS)]
        self.paint()
        self.cursor = 0

    @work(exit_on_error=False, group="end-process")
    async def action_end(self) -> None:
        """Ask, then signal the process under the cursor, or stop the run whose rank it is."""
        from gpu_panel.launch.detail.end_dialog import end_or_stop

        with guard(self.app):
            if (at := self.at_cursor) is None:
                self.notify("No process selected", severity="warning")
                return
            await end_or_stop(self.app, at.process, at.host, self.runs(), self._stop)

    def on_rows_chosen(self, event: Rows.Chosen) -> None:
        event.stop()
