"""The list of runs: read in the background, filtered, sorted, and drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual import events, work
from textual.binding import BindingType
from textual.message import Message
from textual.widgets import Input

from gpu_engine.report import columns as by_name
from gpu_engine.runs import summary
from gpu_panel import keys, themed
from gpu_panel.common.background import in_thread
from gpu_panel.common.errors import guard
from gpu_panel.common.rows import Line, Row, Rows
from gpu_panel.launch.runs import lines, sweeps
from gpu_panel.launch.runs.columns import (
    COLUMNS,
    DEFAULT,
    Layout,
    find,
    in_order,
    layout,
    these,
)
from gpu_panel.launch.runs.line import Pointed
from gpu_panel.launch.runs.sweeps import SweepLine

if TYPE_CHECKING:
    from gpu_panel.launch.runs.feed import RunsFeed
    from gpu_panel.launch.runs.line import RunLine

READ_ON = 0.1
"""Seconds before the next reading while there are runs that have not been read."""


class FilterInput(Input):
    """The words that runs must match, in a line below the list. It is shown only while it has the
    focus."""

    BINDINGS: ClassVar[list[BindingType]] = keys.bindings(keys.of("filter"))
    DEFAULT_CSS = """
    FilterInput { border: none; height: 1; padding: 0 1; }
    """

    def __init__(self, runs: RunsList) -> None:
        self._runs = runs
        super().__init__(id="runs-filter", compact=True,
                         placeholder="text, or state:failed tag:lr train.lr=0.1 name: preset: "
                                     "task: mode: note: id: · -word leaves out")

    def action_keep(self) -> None:
        """Back to the list, which stays filtered."""
        self._runs.focus()

    def action_leave(self) -> None:
        """Back to the list of all runs."""
        self.value = ""
        self._runs.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._runs.show_matches(event.value)

    def on_blur(self, event: events.Blur) -> None:
        self.display = False


class RunsList(Rows):
    """One run a row: live ones on top, then the queue, then the newest; or sorted by a column. Some
    are marked."""

    @dataclass
    class Read(Message):
        runs: tuple[RunLine, ...]

    @dataclass
    class Points(Message):
        """The cursor points at something else, or what it points at has changed."""

        at: Pointed | None

    def __init__(self) -> None:
        super().__init__(id="runs")
        self.lines: tuple[RunLine, ...] | None = None
        """The runs as they were read last; None before the first time."""
        self.live = self.waiting = 0
        """How many runs are live, apart from those that wait in the queue; and how many those are.
        """
        self.marked: set[str] = set()
        self.wanted = summary.parse("")
        self.columns: tuple[str, ...] = DEFAULT
        self.order: str | None = None
        """The column that the runs are sorted by; None: live ones first, then the queue, then the
        newest."""
        self.turned = False
        self._choices_read = False
        self._shown: list[RunLine] = []
        """The runs that match, sorted."""
        self._entries: list[RunLine | SweepLine] = []
        """The same with each sweep as one line, as they are drawn."""
        self.unfolded: set[str] = set()
        self._feed: RunsFeed | None = None
        self._field: FilterInput | None = None
        self._reading = False
        self._skipped = False
        self._unread = 0
        self._layout: Layout | None = None
        self._footer_for: object = None
        self._pointed: Pointed | None = None
        self._new: str | None = None
        self.entitle("Runs")

    # --- reading -------------------------------------------------------------------------------

    def poll(self) -> None:
        """Read what is new on disk, unless that is still being done. If no run is live, do so at
        every second call only."""
        self._skipped = self.lines is not None and not self.live and not self._skipped
        if not self._reading and not self._skipped:
            self._reading = True
            self._read()

    def poll_now(self) -> None:
        """Read what is new now, as something is known to have changed."""
        self._skipped = True
        self.poll()

    @work(exit_on_error=False, group="runs")
    async def _read(self) -> None:
        top = round(self.scroll_y)
        in_sight = tuple(line.id for entry in self._entries[top:top + self.size.height] for line in
                         (entry.members if isinstance(entry, SweepLine) else (entry,)))
        values = any(map(by_name.is_recorded, self.columns))

        def refreshed() -> tuple[RunsFeed, tuple[list[RunLine], int]]:
            from gpu_panel.launch.runs.feed import RunsFeed  # after the first frame

            feed = self._feed or RunsFeed()
            feed.first, feed.values = in_sight, values
            return feed, feed.refresh()

        try:
            with guard(self.app):
                feed, (found, unread) = await in_thread(refreshed)
                self._feed, news, feed.news = feed, feed.news, None
                if self.is_mounted:
                    if news is not None:
                        self.notify(news, markup=False)
                    self.show(found, unread)
                    if unread:
                        self.set_timer(READ_ON, lambda: self.screen.is_active and self.poll_now())
        finally:
            self._reading = False

    def show(self, found: Sequence[RunLine], unread: int = 0) -> None:
        """Show these runs. `unread`: the number of those that are not read yet."""
        self.lines, self._unread = tuple(found), unread
        self.waiting = sum(line.waits for line in found)
        self.live = sum(line.live for line in found) - self.waiting
        if self.marked:
            self.marked &= {line.id for line in found}
        if not self._choices_read:
            self._read_choices()
        self._arrange()
        self.post_message(self.Read(self.lines))

    def _arrange(self) -> None:
        found = self.lines or ()
        if self.wanted:
            found = [line for line in found if self.wanted.matches(line.asked)]
        self._shown = in_order(found, self.order, self.turned)
        self._entries = sweeps.fold(self._shown, self.unfolded)
        self._entitle()
        self.repaint()
        if self._new is not None:
            self._go_to(self._new)

    def repaint(self) -> None:
        """Also called when the pane gets its first width, as a tab that was behind: only then there
        are rows, and one under the cursor."""
        super().repaint()
        self._refresh_footer()

    def go_to(self, run: str) -> None:
        """Put the cursor on a run that has just been started, once it is listed; of a sweep, on the
        line that stands for it."""
        self._new = run
        self.poll_now()

    def _go_to(self, run: str) -> None:
        key = next((entry.id for entry in self._entries if entry.id == run or (
            isinstance(entry, SweepLine) and any(one.id == run for one in entry.members))), None)
        if key in self.keys:
            self.cursor, self._new = self.keys.index(key), None

    def _entitle(self) -> None:
        every = self.lines or ()
        earlier = len(every) - self.live - self.waiting
        counts = [f"{self.live} running"] if self.live else []
        counts += [f"{self.waiting:,} waiting"] if self.waiting else []
        counts += [f"{earlier:,} earlier"] if earlier else []
        if self.wanted:
            counts = [f"{len(self._shown):,} of {len(every):,} match {self.wanted.text.strip()}"]
        if self.marked:
            hidden = len(self.marked - {line.id for line in self._shown})
            counts += [f"{len(self.marked)} marked" + (f", {hidden} not shown" if hidden else "")]
        if self.order is not None or self.turned:
            counts += ["by " + "".join(c.head for c in these([self.order])) if self.order
                       else "by age, oldest first"]
        if self._unread:
            counts += [f"reading {self._unread:,}"]
        self.entitle("Runs" + (f" ─ {' · '.join(counts)}" if counts else ""), self._keys_here())

    def _keys_here(self) -> str:
        """The keys for the run under the cursor that the footer does not show."""
        if (sweep := self.sweep_at_cursor) is not None:
            return f"{'← fold' if sweep.unfolded else '→ show its runs'} · m mark · x remove"
        line = self.line_at_cursor
        if line is not None and line.waits and not self.marked:
            return "[ ] move in the queue · { first · } last"
        return "/ filter · m mark · n name · x remove · e again" if self.lines else ""

    # --- painting ------------------------------------------------------------------------------

    def build(self, width: int) -> tuple[Line | None, Sequence[Row]]:
        if self.lines is None:
            return None, [lines.text_row("Looking for runs …")]
        if not self.lines:
            return None, [lines.text_row("No runs yet. ctrl+l launches one.")]
        self._layout = columns = layout(self.lines, width, self.columns, marks=bool(self.marked))
        rows = [sweeps.row(entry, columns, self.marked, bool(self.wanted))
                if isinstance(entry, SweepLine)
                else lines.run_row(entry, columns, entry.id in self.marked)
                for entry in self._entries]
        if not rows:
            doubt = f": {self.wanted.doubt}" if self.wanted.doubt else ""
            rows.append(lines.text_row(f"No run matches{doubt}. Esc shows all runs."))
        return lines.head_line(columns, self.order, self.turned), rows

    # --- filter, order, columns ----------------------------------------------------------------

    async def action_filter(self) -> None:
        if self._field is None:
            self._field = FilterInput(self)
            await self.screen.mount(self._field, after=self)
        self._field.value = self.wanted.text
        self._field.display = True
        self._field.focus()

    def show_matches(self, text: str) -> None:
        if text != self.wanted.text:
            self.wanted = summary.parse(text)
            self._arrange()

    def action_clear(self) -> None:
        """Clear the marks; if there are none, the filter."""
        if self.marked:
            self.marked = set()
        else:
            self.wanted = summary.parse("")
        self._arrange()

    def action_order(self) -> None:
        shown = [c.name for c, _ in self._layout.columns if c.order] if self._layout else []
        known = [None, *shown]
        at = known.index(self.order) if self.order in known else -1
        self._sort_by(known[(at + 1) % len(known)])

    def action_best(self) -> None:
        """Sort by the loss and go to the best run; if they are sorted so, as before."""
        best = "loss"
        self._sort_by(None if self.order == best and not self.turned else best)

    def action_turn(self) -> None:
        self._sort_by(self.order, not self.turned)

    def header_clicked(self, x: int) -> None:
        column = self._layout.at(x) if self._layout is not None else None
        if column is not None and column.order is not None:
            self._sort_by(column.name, column.name == self.order and not self.turned)

    def _sort_by(self, name: str | None, turned: bool = False) -> None:
        self.order, self.turned = name, turned
        self._arrange()
        self.scroll_to(y=0, animate=False)
        self.cursor = 0
        self._keep_choices()

    @work(exit_on_error=False, group="run", exclusive=True)
    async def action_columns(self) -> None:
        from gpu_panel.launch.runs.choose import ChooseColumns

        every = self.lines or ()
        more = by_name.names((line.settings for line in every), (line.values for line in every))
        chosen = await self.app.push_screen_wait(ChooseColumns(self.columns, more))
        if chosen is not None and chosen != self.columns:
            self.columns = chosen
            if self.order not in chosen:
                self.order = None
            self._arrange()
            self._keep_choices()
            self.poll_now()  # a value that is shown now may have to be read

    def _read_choices(self) -> None:
        self._choices_read = True
        kept = themed.read().get("runs")
        if isinstance(kept, dict):
            names, order = kept.get("columns"), kept.get("order")
            if isinstance(names, list) and "run" in names:
                others = [name for name in names if isinstance(name, str) and name not in COLUMNS]
                self.columns = tuple(c.name for c in these(
                    [*(name for name in COLUMNS if name in names), *others]))
            column = find(order) if isinstance(order, str) else None
            if column is not None and column.order is not None:
                self.order, self.turned = order, kept.get("turned") is True

    @work(exit_on_error=False, group="choices", exclusive=True)
    async def _keep_choices(self) -> None:
        try:
            await in_thread(lambda: themed.keep("runs", lambda: {
                "columns": list(self.columns), "order": self.order, "turned": self.turned}))
        except OSError as err:
            self.notify(f"The columns can't be saved: {err}", severity="warning", markup=False)

    # --- the cursor and the marks ----------------------------------------------------------------

    def watch_cursor(self, old: int, new: int) -> None:
        super().watch_cursor(old, new)
        self._refresh_footer()

    @property
    def pointed(self) -> Pointed | None:
        """The marked runs; unless there are several, the sweep or the run under the cursor."""
        if len(self.marked) > 1:
            return Pointed(tuple(in_order(self.targets, self.order, self.turned)))
        if (sweep := self.sweep_at_cursor) is not None:
            return Pointed(sweep.members, sweep.id)
        return Pointed((line,)) if (line := self.line_at_cursor) is not None else None

    def _refresh_footer(self) -> None:
        """Update the footer if other actions can be used than before, and tell what the cursor
        points at."""
        pointed = self.pointed
        if pointed != self._pointed:
            self._pointed = pointed
            self.post_message(self.Points(pointed))
        line = self.line_at_cursor
        sweep = self.sweep_at_cursor
        now = ((line.live, line.waits) if line is not None else sweep and sweep.unfolded,
               len(self.marked) > 1,
               bool(self.marked), any(one.live for one in self.targets), bool(self.wanted))
        if now != self._footer_for:
            self._footer_for = now
            self._entitle()
            self.refresh_bindings()

    @property
    def line_at_cursor(self) -> RunLine | None:
        key = self.key_at_cursor
        return next((line for line in self._shown if line.id == key), None)

    @property
    def sweep_at_cursor(self) -> SweepLine | None:
        key = self.key_at_cursor
        return next((one for one in self._entries if isinstance(one, SweepLine) and one.id == key),
                    None)

    @property
    def targets(self) -> list[RunLine]:
        """The marked runs, also those that the filter hides; if none is, the one under the
        cursor, or all runs of the sweep there."""
        if self.marked:
            return [line for line in self.lines or () if line.id in self.marked]
        if (sweep := self.sweep_at_cursor) is not None:
            return sweep.to_stop
        return [line] if (line := self.line_at_cursor) is not None else []
