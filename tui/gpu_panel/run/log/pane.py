"""The log pane: choosing a log, searching it, and asking ranks for their stacks."""

from __future__ import annotations

import asyncio
import os
import shlex
from pathlib import PurePath
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input

from gpu_engine.common.errors import UserError
from gpu_engine.runs import stacks
from gpu_panel import keys
from gpu_panel.commands import same
from gpu_panel.common.clipboard import copy
from gpu_panel.common.errors import guard
from gpu_panel.run.doing import name_ranks, standing_still
from gpu_panel.run.log.lines import LogSources
from gpu_panel.run.log.view import LogView
from gpu_panel.run.pane import Moment, RunPane
from gpu_panel.run.store import RunStore

STEP = 6


class FindInput(Input):
    """The text to search the log for; escape closes the field."""

    BINDINGS: ClassVar[list[BindingType]] = keys.bindings(keys.of("find"))

    class Left(Message):
        """The person has cancelled the search."""

    def action_leave(self) -> None:
        with self.prevent(Input.Changed):
            self.value = ""
        self.post_message(self.Left())


class LogPane(Vertical, RunPane):
    """Shows one of the run's logs: a rank's, a traceback, a launcher's or the supervisor's."""

    NAME = TITLE = "log"
    KEYS = keys.of("log", "find")
    CHANGES: ClassVar[frozenset[str]] = frozenset({"stacks", "pager"})
    HELP = """The output of the ranks, the traceback of the rank that failed first, the output of
launchers, and the supervisor's log."""
    DEFAULT_CLASSES = ""  # the LogView inside has the frame
    DEFAULT_CSS = """
    LogPane {
        height: 1fr;
        min-height: 5;
        LogView { height: 1fr; }
        FindInput { display: none; border: none; height: 1; padding: 0 1; }
    }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._store: RunStore | None = None
        self._now = 0.0
        self._sources: LogSources | None = None
        self._rank: int | None = None
        self._attempt = 1
        self._failure_shown = False
        self._stalled: int | None = None
        """The rank that was shown last as the cause of a standstill."""

    def compose(self) -> ComposeResult:
        yield LogView(id="log-lines", classes="pane")
        yield FindInput(id="find", placeholder="find", compact=True)

    def enter(self) -> None:
        self._view.focus(scroll_visible=False)

    @property
    def lines_wanted(self) -> int:
        """Rows of text with which nothing need be scrolled."""
        view = next(iter(self.query(LogView)), None)  # it may not be there yet
        return view.rows_wanted if view is not None else 1

    @property
    def rows_wanted(self) -> int:
        """The same with the frame, in steps of `STEP`, so that the panes above seldom move."""
        return -(-(self.lines_wanted + 2) // STEP) * STEP

    @property
    def _view(self) -> LogView:
        return self.query_one(LogView)

    # --- which log -----------------------------------------------------------------------------

    def paint(self, store: RunStore, moment: Moment) -> None:
        self._store, self._now = store, moment.now
        if self._sources is None:
            self._sources = LogSources(store.run)
        sources = self._sources
        attempt = store.state.attempt if store.state is not None else 1
        if attempt != self._attempt:  # the failure shown so far was that of an earlier attempt
            self._attempt, self._failure_shown = attempt, False
            sources.forget_failure()
        sources.learn(store)
        if sources.failed is not None and not self._failure_shown:
            self._failure_shown = True  # bring the cause to the front, once
            sources.show_failure()
        if self._view.log_shown is not sources.current:
            self._show(sources)
        else:
            self._view.read_on()

    def anew(self) -> None:
        self._sources = self._rank = self._stalled = None
        self._attempt, self._failure_shown = 1, False
        self._view.search("")

    def _show(self, sources: LogSources) -> None:
        """Put the chosen log into the view, and tell the other panes whose it is."""
        self._view.show(sources.current)
        self._view.border_title = Content(f"log ─ {sources.title}")
        if sources.rank is not None and sources.rank != self._rank:
            self._rank = sources.rank
            self.post_message(self.RankChosen(self, sources.rank))

    def rank_chosen(self, rank: int) -> None:
        """Show the log of a rank that was chosen in another pane."""
        self._rank = rank
        self._show_rank(rank)
        self.come_forward()

    def _show_rank(self, rank: int) -> None:
        if self._sources is not None:
            self._sources.show(rank)
            self._show(self._sources)

    def action_next_rank(self) -> None:
        if self._sources is not None:
            self._sources.next_rank()
            self._show(self._sources)

    def action_source(self, by: int) -> None:
        if self._sources is not None:
            self._sources.move(by)
            self._show(self._sources)

    def action_copy(self) -> None:
        log = self._view.log_shown
        line = "\n".join(log.lines) if log is not None and log.path is None \
            else self._view.current()
        if not line:
            self.notify("No line to copy", severity="warning")
            return
        copy(self.app, line)

    @work(group="pager", exclusive=True, exit_on_error=False)
    async def action_pager(self) -> None:
        """Read the whole log in the person's pager."""
        from gpu_panel.commands.terminal import in_terminal

        with guard(self.app):
            if (log := self._view.log_shown) is not None:
                given = os.environ.get("PAGER", "").strip() or "less"
                try:
                    argv = shlex.split(given)
                except ValueError as err:
                    raise UserError(f"$PAGER is {given!r}: {err}") from None
                end = ["+G"] * (PurePath(argv[0]).name == "less")
                in_terminal(self.app, [*argv, *end], log.whole())

    # --- where a rank is now -------------------------------------------------------------------

    @work(group="stacks", exclusive=True, exit_on_error=False)
    async def action_stacks(self) -> None:
        """Have the chosen rank print its stacks into its log, and follow that log. If ranks stand
        still, ask all of those and show the log of the one that seems to be the cause."""
        store, sources = self._store, self._sources
        if store is None or sources is None:
            return
        rank = sources.rank if sources.rank is not None else 0
        still = [standing.rank for standing in standing_still(store, self._now)]
        if still and still[0] != self._stalled:
            rank = still[0]
        self._stalled = still[0] if still else None
        others = [r for r in still if r != rank and r not in store.suspended]
        if pid := store.suspended.get(rank):
            self.notify(f"Rank {rank} was stopped by a signal and can't answer: kill -CONT {pid} "
                        "continues it", severity="warning", timeout=10, markup=False)
            if not others:
                return
            rank = others.pop(0)
        answers = await asyncio.to_thread(
            lambda: [stacks.request(store.run, r) for r in (rank, *others)])
        if not answers[0]:
            self.notify(f"Rank {rank} can't print its stacks: it has ended, or is not ready yet",
                        severity="warning", markup=False)
            return
        self._show_rank(rank)
        self._view.action_last()
        self.come_forward()
        also = f", and {name_ranks(others)}" if others else ""
        same.done(self.app, f"Asked rank {rank} for its stacks{also}; they appear in its log",
                  [["stacks", store.run.id, "--rank", str(r)] for r in (rank, *others)])

    # --- find and filter ------------------------------------------------------------------

    def action_find(self) -> None:
        self._ask("find")

    def action_filter(self) -> None:
        """Show only the lines with the text that is searched for, or all; ask if there is none."""
        if self._view.needle:
            self._view.only_matches(not self._view.filtered)
            self.come_forward()
        else:
            self._ask("show only lines with")

    def action_wrap(self) -> None:
        self._view.action_wrap()
        self.come_forward()

    def action_find_next(self, step: int) -> None:
        self._view.find_next(step)

    def _ask(self, what: str) -> None:
        """Show the field; its placeholder says what for."""
        self.come_forward()
        field = self.query_one(FindInput)
        with self.prevent(Input.Changed):
            field.value = self._view.needle if what == "find" else ""
        field.placeholder = what
        field.display = True
        field.focus()

    def _close_find(self) -> None:
        self.query_one(FindInput).display = False
        self._view.focus()

    def on_find_input_left(self) -> None:
        self._close_find()
        self._view.search("")

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._view.needle = event.value
        self._view.refresh()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        only = event.input.placeholder.startswith("show only")
        self._close_find()
        self._view.search(event.value, -1 if self._view.following else 1)
        if only and event.value:
            self._view.only_matches(filtered=True)

    def on_log_view_searched(self, message: LogView.Searched) -> None:
        if message.text:
            self.notify(message.text, markup=False, timeout=4)
