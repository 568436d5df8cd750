"""The log pane: which log is shown, finding text in it, and asking ranks for their stacks."""

from __future__ import annotations

import asyncio
import os
import shlex
from pathlib import PurePath
from typing import ClassVar

from rich.highlighter import Highlighter
from rich.style import Style
from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.strip import Strip
from textual.widgets import Input, Log, Static

from gpu_engine.common.errors import UserError
from gpu_engine.runs import stacks
from gpu_panel import keys
from gpu_panel.commands import same
from gpu_panel.common.background import in_thread
from gpu_panel.common.clipboard import copy
from gpu_panel.common.errors import guard
from gpu_panel.common.painting import put_lines
from gpu_panel.run.banner import failure
from gpu_panel.run.doing import name_ranks, standing_still
from gpu_panel.run.log_file import BAR, MOST, LogFile
from gpu_panel.run.pane import Moment, RunPane
from gpu_panel.run.store import RunStore


class _Matches(Highlighter):
    """Marks the text that is searched for, and dims progress bars."""

    needle = ""
    style = Style(reverse=True)

    @property
    def cased(self) -> bool:
        """Whether case counts: it does if the text has capitals."""
        return self.needle != self.needle.lower()

    def holds(self, line: str) -> bool:
        return self.needle in (line if self.cased else line.lower())

    def highlight(self, text: Text) -> None:
        if BAR.match(text.plain):
            text.stylize(Style(dim=True))
        if self.needle:
            text.highlight_words([self.needle], self.style, case_sensitive=self.cased)


class LogView(Log):
    """Textual's log: it follows the end while that is in view, and what the mouse marks can be
    copied. It has the lines of a `LogFile`, or only those with a match."""

    DEFAULT_CSS = """
    LogView {
        background: transparent;
        color: $foreground;
        overflow: auto;
        scrollbar-size-vertical: 1;
        scrollbar-size-horizontal: 0;
        &:focus { background-tint: $foreground 0%; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = keys.of_focus(keys.of("log"))

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(highlight=True, max_lines=MOST, id=id, classes=classes)
        self.highlighter = self._matches = _Matches()
        self.all: list[str] = []
        """The lines of the log; `lines` are those that are shown."""
        self.filtered = False
        self.following = True
        """Whether the end is in view, and stays there."""
        self.at: int | None = None
        """The line with the match that was found last."""

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self.following = self.is_vertical_scroll_end

    def watch_show_vertical_scrollbar(self, shown: bool) -> None:
        if shown:  # Textual moves only a bar that is there already, and it comes after the scroll
            self.vertical_scrollbar.position = self.scroll_y

    def on_resize(self) -> None:
        if self.following:
            self.call_after_refresh(self.to_end)

    def to_end(self) -> None:
        self.scroll_end(animate=False, immediate=True, force=True, x_axis=False)

    @property
    def needle(self) -> str:
        return self._matches.needle

    def show(self, lines: list[str]) -> None:
        """Show these lines in place of others."""
        self.all, self.at = [], None
        self.clear()
        self.add(lines)
        self.to_end()

    def add(self, lines: list[str]) -> None:
        self.all = [*self.all, *lines][-MOST:]
        shown = [line for line in lines if self._matches.holds(line)] if self.filtered else lines
        if shown:
            self.write_lines(line or " " for line in shown)  # an empty text is no line to Textual
            if self.following:
                self.to_end()

    def mark(self, needle: str) -> None:
        """Mark all matches of this text."""
        self._matches.needle, self.at = needle, None
        if self.filtered:
            self.show(self.all)
        self.refresh()

    def only_matches(self, filtered: bool) -> None:
        if filtered != self.filtered:
            self.filtered = filtered
            self.show(self.all)

    def matches(self) -> list[int]:
        """The lines that are shown and have the text that is searched for."""
        return [n for n, line in enumerate(self.lines) if self._matches.holds(line)] \
            if self.needle else []

    def seek(self, step: int) -> bool:
        """Go to the next match (step 1) or the one before (-1), round the end if there is none; at
        first from what is in view. Returns whether there is any."""
        hits = self.matches()
        if not hits:
            return False
        at = self.at
        if at is None:
            top = round(self.scroll_y)
            at = top + self.size.height if step < 0 else top - 1
        ahead = [hit for hit in hits if (hit - at) * step > 0] or hits
        self.at = ahead[0] if step > 0 else ahead[-1]
        line = self.lines[self.at]
        column = (line if self._matches.cased else line.lower()).find(self.needle)
        far = max(column - self.size.width // 2, 0) if column >= self.size.width else 0
        self.scroll_to(far, max(self.at - self.size.height // 2, 0), animate=False,
                       immediate=True, force=True)
        self.refresh()
        return True

    def render_line(self, y: int) -> Strip:
        strip = super().render_line(y)
        return strip.apply_style(Style(bold=True, underline=True)) \
            if self.at is not None and round(self.scroll_y) + y == self.at else strip


class FindInput(Input):
    """The text to search the log for."""


FAILURE, SUPERVISOR = "traceback", "supervisor"


class LogPane(Vertical, RunPane):
    """Shows one of the run's logs: a rank's, which its number names, a launcher's ("node0"), the
    traceback of the rank that failed first, or the supervisor's."""

    NAME = TITLE = "log"
    KEYS = keys.of("log", "find")
    BINDINGS: ClassVar[list[BindingType]] = keys.bindings(keys.of("find"))
    CHANGES: ClassVar[frozenset[str]] = frozenset({"stacks", "pager"})
    HELP = """The output of the ranks, the traceback of the rank that failed first, the output of
launchers, and the supervisor's log. What the mouse marks, ctrl+c copies."""
    DEFAULT_CLASSES = ""  # the LogView inside has the frame
    DEFAULT_CSS = """
    LogPane {
        height: 1fr;
        min-height: 5;
        LogView { height: 1fr; }
        #growing { height: 1; padding: 0 1; color: $text-muted; text-wrap: nowrap; }
        FindInput { display: none; border: none; height: 1; padding: 0 1; }
    }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._store: RunStore | None = None
        self._now = 0.0
        self.anew()

    def anew(self) -> None:
        self._key: int | str = SUPERVISOR
        self._file: LogFile | None = None
        self._reading: LogFile | None = None
        self._chosen = False
        """Whether another log than the first one that is known is to be shown."""
        self._rank: int | None = None
        """The rank whose log is shown, or was shown last."""
        self._attempt = 1
        self._failure: tuple[int | None, str] | None = None
        """(rank, traceback) of the first failure."""

    def compose(self) -> ComposeResult:
        yield LogView(id="log-lines", classes="pane")
        yield Static(id="growing", markup=False)
        yield FindInput(id="find", placeholder="find", compact=True)

    def enter(self) -> None:
        self._view.focus(scroll_visible=False)

    @property
    def _view(self) -> LogView:
        return self.query_one(LogView)

    # --- which log -----------------------------------------------------------------------------

    def paint(self, store: RunStore, moment: Moment) -> None:
        self._store, self._now = store, moment.now
        attempt = store.state.attempt if store.state is not None else 1
        if attempt != self._attempt:  # what failed was an earlier attempt
            self._attempt, self._failure = attempt, None
            if self._key == FAILURE:
                self._show(self._rank if self._rank is not None else SUPERVISOR)
        if self._failure is None and (first := failure(store)) is not None:
            self._failure = first  # its cause comes to the front, once
            self._rank = self._rank if first[0] is None else first[0]
            self._show(FAILURE)
        elif not self._chosen and store.ranks:
            self._show(next(iter(store.ranks)))
        elif self._file is None:
            self._show(SUPERVISOR)
            self._chosen = False
        self._read_on()

    def _logs(self) -> list[int | str]:
        store = self._store
        return [SUPERVISOR] if store is None else [
            *store.ranks, *([FAILURE] if self._failure else []), *store.launchers, SUPERVISOR]

    def _show(self, key: int | str) -> None:
        if self._store is None or (key == self._key and self._file is not None):
            return
        self._key, self._chosen, run = key, True, self._store.run
        if isinstance(key, int):
            self._file = LogFile(f"rank {key}", run.output(key, self._store.plan))
        elif key == FAILURE and self._failure is not None:
            rank, text = self._failure
            self._file = LogFile(key if rank is None else f"{key} of rank {rank}", text=text)
        else:
            self._file = LogFile(str(key), run.path / f"{key}.log")
        self._view.show([])
        self._view.border_title = Content(f"log ─ {self._file.title}")
        if isinstance(key, int) and key != self._rank:
            self._rank = key
            self.post_message(self.RankChosen(self, key))
        self._read_on()

    def _read_on(self) -> None:
        if self._file is not None and self._reading is not self._file:
            self._reading = self._file
            self._read(self._file)

    @work(group="log-read", exit_on_error=False)
    async def _read(self, file: LogFile) -> None:
        try:
            lines = await in_thread(file.read)
        finally:
            if self._reading is file:
                self._reading = None
        if file is self._file and self.is_mounted:
            self._view.add(lines)
            put_lines(self.query_one("#growing", Static), [last] if (
                last := file.growing or ("" if self._view.all else file.trouble)) else [])
            self._say()

    def _say(self) -> None:
        view, parts = self._view, list[str]()
        if view.needle:
            hits = view.matches()
            parts.append(f"{hits.index(view.at) + 1:,} of {len(hits):,}" if view.at in hits
                         else f"{len(hits):,} matches")
        parts += ["only matches"] if view.filtered else []
        many = len(view.all)
        cut = many == MOST or (self._file is not None and self._file.cut)
        parts.append(f"last {many:,} lines (v: all)" if cut else
                     f"{many:,} line{'' if many == 1 else 's'}")
        view.border_subtitle = Content(" · ".join(parts))

    def rank_chosen(self, rank: int) -> None:
        """Show the log of a rank that was chosen in another pane."""
        self._rank = rank
        self._show(rank)
        self.come_forward()

    def action_next_rank(self) -> None:
        """The next rank's log; if another log is shown, that of the rank that was shown last."""
        ranks = [key for key in self._logs() if isinstance(key, int)]
        if self._key in ranks:
            self._show(ranks[(ranks.index(int(self._key)) + 1) % len(ranks)])
        elif ranks:
            self._show(ranks[0] if self._rank is None else self._rank)

    def action_source(self, by: int) -> None:
        logs = self._logs()
        self._show(logs[(logs.index(self._key) + by) % len(logs)] if self._key in logs else logs[0])

    def action_copy(self) -> None:
        """What the mouse has marked, else the whole traceback, the line that was found, or the last
        one."""
        view = self._view
        text = self.screen.get_selected_text() or ""
        if not text and view.lines:
            text = "\n".join(view.lines) if self._key == FAILURE else \
                view.lines[-1 if view.at is None else view.at]
        if text.strip():
            copy(self.app, text)
        else:
            self.notify("No line to copy", severity="warning")

    @work(group="pager", exclusive=True, exit_on_error=False)
    async def action_pager(self) -> None:
        """Read the whole log in the person's pager."""
        from gpu_panel.commands.terminal import in_terminal

        with guard(self.app):
            if self._file is not None:
                given = os.environ.get("PAGER", "").strip() or "less"
                try:
                    argv = shlex.split(given)
                except ValueError as err:
                    raise UserError(f"$PAGER is {given!r}: {err}") from None
                end = ["+G"] * (PurePath(argv[0]).name == "less")
                in_terminal(self.app, [*argv, *end], self._file.whole(self._view.all))

    # --- where a rank is now -------------------------------------------------------------------

    @work(group="stacks", exclusive=True, exit_on_error=False)
    async def action_stacks(self) -> None:
        """Have the ranks that stand still print their stacks into their logs, or else the chosen
        one, and show the log of the one that seems to be the cause."""
        if (store := self._store) is None:
            return
        still = [standing.rank for standing in standing_still(store, self._now)]
        asked = still or [self._rank or 0]
        for rank in [r for r in asked if r in store.suspended]:
            asked.remove(rank)
            self.notify(f"Rank {rank} was stopped by a signal and can't answer: kill -CONT "
                        f"{store.suspended[rank]} continues it", severity="warning", timeout=10,
                        markup=False)
        if not asked:
            return
        answers = await asyncio.to_thread(lambda: [stacks.request(store.run, r) for r in asked])
        if not answers[0]:
            self.notify(f"Rank {asked[0]} can't print its stacks: it has ended, or is not ready "
                        "yet", severity="warning", markup=False)
            return
        self._show(asked[0])
        self._view.to_end()
        self.come_forward()
        same.done(self.app, f"Asked {name_ranks(asked)} for the stacks; they appear in the logs",
                  [["stacks", store.run.id, "--rank", str(r)] for r in asked])

    # --- finding -------------------------------------------------------------------------------

    def action_find(self) -> None:
        self.come_forward()
        field = self.query_one(FindInput)
        field.display = True
        field.value = self._view.needle
        field.focus()

    def action_filter(self) -> None:
        """Show only the lines with the text that is searched for, or all; ask if there is none."""
        self.come_forward()
        if not self._view.needle:
            self.action_find()
            return
        self._view.only_matches(not self._view.filtered)
        self._say()

    def action_find_next(self, step: int) -> None:
        if self._view.needle:
            self._seek(step)

    def _seek(self, step: int) -> None:
        if not self._view.seek(step):
            self.notify(f"Not found: {self._view.needle}", markup=False, timeout=4)
        self._say()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Escape goes back from the run where nothing is searched for."""
        return action != "leave" or self.query_one(FindInput).display or bool(self._view.needle)

    def action_leave(self) -> None:
        """Close the field, and search for nothing."""
        self.query_one(FindInput).display = False
        self._view.mark("")
        self._view.only_matches(filtered=False)
        self._view.focus()
        self._say()

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._view.mark(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        event.input.display = False
        self._view.focus()
        if event.value:
            self._seek(-1 if self._view.following else 1)
