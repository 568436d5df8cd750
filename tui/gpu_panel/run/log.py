"""The run screen's log: which one is shown, finding in it, where a rank is now."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Input

from gpu_panel.run import rank_words
from gpu_panel.run import words as run_words
from gpu_panel.run.log_view import LogView
from gpu_panel.run.rank_table import RankTable

if TYPE_CHECKING:
    from gpu_panel.run.screen import RunScreen


class FindInput(Input):
    """What to look for in the log; escape leaves it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Leave", show=False, id="find-leave",
                tooltip="Back to the log, without marks")]

    def action_leave(self) -> None:
        self.value = ""
        self.screen.close_find()


class LogActions:
    """Mixed into the run screen."""

    _stalled: int | None = None
    """The rank that was shown as the cause of a standstill."""

    # --- which log -----------------------------------------------------------------------------

    def show_source(self: RunScreen) -> None:
        """Put the chosen log into the view, and mark its rank."""
        view, table = self.query_one(LogView), self.query_one(RankTable)
        view.show(self.sources.current)
        view.border_title = Content(f"log ─ {self.sources.title}")
        if self.sources.rank is not None and self.sources.rank != table.chosen:
            table.choose(self.sources.rank)
            self.paint_curves()

    def action_next_rank(self: RunScreen) -> None:
        self.sources.next_rank()
        self.show_source()

    def action_source(self: RunScreen, by: int) -> None:
        self.sources.move(by)
        self.show_source()

    def on_rank_table_picked(self: RunScreen, message: RankTable.Picked) -> None:
        self.sources.show_rank(message.rank)
        self.show_source()
        if self.has_class("-tabs"):
            self.action_pane("log")

    def action_copy(self: RunScreen) -> None:
        line = self.query_one(LogView).current()
        if not line:
            self.notify("there is no line to copy", severity="warning")
            return
        self.app.copy_to_clipboard(line)
        self.notify("sent to the terminal's clipboard")

    # By name, as the worker's decorator needs no class that handles messages.
    @work(group="stacks", exclusive=True, exit_on_error=False)
    async def action_stacks(self: RunScreen) -> None:
        """Have the chosen rank print its stacks, and follow its log, where they arrive. Where
        ranks stand still all of them are asked, and the one that seems to be why is shown."""
        rank = self.sources.rank if self.sources.rank is not None else 0
        standing = [sign.rank for sign in run_words.stalled(self.store, self.clock())]
        if standing and standing[0] != self._stalled:
            rank = standing[0]
        self._stalled = standing[0] if standing else None
        others = [r for r in standing if r != rank and r not in self.store.suspended]
        if pid := self.store.suspended.get(rank):
            self.notify(f"rank {rank} was stopped by a signal and can't answer: kill -CONT {pid} "
                        "lets it go on", severity="warning", timeout=10)
            rank = others.pop(0) if others else None
        answers = await asyncio.to_thread(lambda: [
            self.run_folder.dump_stacks(r) for r in (rank, *others) if r is not None])
        if rank is None:
            return
        if not answers[0]:
            self.notify(f"rank {rank} can't be asked: it has ended, or has not come as far as to "
                        "listen", severity="warning")
            return
        self.sources.show_rank(rank)
        self.show_source()
        self.query_one(LogView).action_last()
        if self.has_class("-tabs"):
            self.action_pane("log")
        also = f", and {rank_words.names(others)}" if others else ""
        self.notify(f"asked rank {rank} where it is{also}; its log has the answer")

    # --- find ----------------------------------------------------------------------------------

    def action_find(self: RunScreen) -> None:
        if self.has_class("-tabs"):
            self.action_pane("log")
        field = self.query_one("#find", FindInput)
        field.display = True
        field.focus()

    def close_find(self: RunScreen) -> None:
        self.query_one("#find").display = False
        self.pane = "log"
        self.query_one(LogView).focus()

    def on_input_changed(self: RunScreen, event: Input.Changed) -> None:
        view = self.query_one(LogView)
        view.needle = event.value
        view.refresh()

    def on_input_submitted(self: RunScreen, event: Input.Submitted) -> None:
        view = self.query_one(LogView)
        self.close_find()
        view.search(event.value, -1 if view.following else 1)

    def action_again(self: RunScreen, step: int) -> None:
        self.query_one(LogView).again(step)

    def on_log_view_told(self: RunScreen, message: LogView.Told) -> None:
        if message.words:
            self.notify(message.words, markup=False, timeout=2)
