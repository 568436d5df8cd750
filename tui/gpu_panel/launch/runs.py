"""The runs pane: the list of runs, read in the background, filtered and sorted; and what can be
done with them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Literal

from textual import events, work
from textual.binding import BindingType
from textual.message import Message
from textual.widgets import Input

from gpu_engine.runs import query
from gpu_panel import keys, readonly, theme
from gpu_panel.commands import same
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import AskLine
from gpu_panel.common.errors import guard, guarded
from gpu_panel.common.panes import Pane
from gpu_panel.common.rows import Line, Row, Rows, text_row
from gpu_panel.launch import run_line
from gpu_panel.launch.run_line import (
    COLUMNS,
    DEFAULT,
    Layout,
    Pointed,
    SweepLine,
    find,
    in_order,
    layout,
    these,
)
from gpu_panel.textual_private import surely_rings

if TYPE_CHECKING:
    from gpu_engine.runs.folder import Run
    from gpu_panel.commands.own import Values
    from gpu_panel.launch.run_feed import RunsFeed
    from gpu_panel.launch.run_line import RunLine
    from gpu_panel.run.store import RunStore

FIRST = (("gpu-panel -- python train.py", "your own script, unchanged"),
         ("gpu-engine run -- python train.py", "without the screen"),
         ("gpu-engine run ddp -n 2", "DDP on two devices"))
"""What one can do where there are no runs, and what it does: commands of README."""
READ_ON = 0.1
"""Seconds before the next reading while there are runs that have not been read."""


class FilterInput(Input):
    """The words that runs must match, in a line below the list. It is shown only while it has the
    focus."""

    BINDINGS: ClassVar[list[BindingType]] = keys.bindings(keys.of("filter"))
    DEFAULT_CSS = """
    FilterInput { border: none; height: 1; padding: 0 1; }
    """

    def __init__(self, runs: RunsPane) -> None:
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


_LOOK = 3.0
"""Seconds between two looks at the places of all runs."""
_DOES = {"stop": "stopped", "resume": "resumed", "remove": "removed", "again": "loaded",
         "note": "named", "tags": "tagged", "judge": "judged", "move": "moved", "open": "opened",
         "code": "compared with the code of today"}
_OF_ONE = ("resume", "again", "note", "move", "code")


class RunsPane(Rows, Pane):  # pyright: ignore[reportIncompatibleMethodOverride]  Textual's scroll_to
    """One run a row: live ones on top, then the queue, then the newest; or sorted by a column. Some
    are marked."""

    NAME = "runs"
    TITLE = "Runs"
    CALLED = "the runs"
    KEYS = keys.of("runs", "filter")
    BINDINGS: ClassVar[list[BindingType]] = keys.of_focus(keys.of("runs"))
    CHANGES: ClassVar[frozenset[str]] = frozenset({
        "stop", "resume", "remove", "move", "note", "tags", "judge", "export", "code"})
    HELP = """Runs go on when the panel closes; this list finds them again. The preview shows
the run under the cursor, live or finished; enter shows it on a whole screen. s asks it to
save and end; u resumes a run that has ended; e loads a run's settings into the
form. x removes a finished run with its checkpoints for good, and asks.

Queued runs follow the running ones in the order of the queue, with what each waits for. [ and ]
move one forward and back; s removes it.

The runs of a sweep are one line, a cell each: the higher, the better among those that are done.
Enter opens its table, → and ← show and hide its runs here. A warning is told at the first run that
has it; all of them have a !.

/ looks for runs: each word is text that a run must have anywhere, or FIELD:TEXT with one of id,
name, preset, task, mode, tag, state, note and verdict, as in state:failed verdict:keep; -WORD
leaves out what matches. o sorts by the next column, O reverses the order, C chooses the columns; b
sorts by the best value. n gives a run a name, t tags; K says that its result is worth keeping (★),
D that it is not (×). d shows what was changed since in its code.

m marks runs. Then s, x, t, K and D are for all marked runs, s and x after one question that names
them, and c compares them. Esc clears the marks, then the filter."""

    @dataclass
    class Read(Message):
        runs: tuple[RunLine, ...]

    @dataclass
    class Points(Message):
        """The cursor points at something else, or what it points at has changed."""

        at: Pointed | None

    @dataclass
    class Again(Message):
        run: Run

    def __init__(self, stores: dict[str, RunStore]) -> None:
        """`stores`: what has been read of runs, for the screens that are opened here."""
        super().__init__(id=self.NAME)
        self._stores = stores
        self._asking = False
        self._moves = asyncio.Lock()
        """Held while a run is moved in the queue, so that moves follow each other."""
        self.lines: tuple[RunLine, ...] | None = None
        """The runs as they were read last; None before the first time."""
        self.live = self.waiting = 0
        """How many runs are live, apart from those that wait in the queue; and how many those are.
        """
        self.marked: set[str] = set()
        self.wanted = query.parse("")
        self.columns: tuple[str, ...] = DEFAULT
        self.hues: dict[str, str] = {}
        """The styles of live runs, by their ids: those that they have among the devices."""
        self.order: str | None = None
        """The column that the runs are sorted by; None: live ones first, then the queue, then the
        newest."""
        self.turned = False
        self._choices_read = False
        self._shown: list[RunLine] = []
        """The runs that match, sorted."""
        self._entries: dict[str, RunLine | SweepLine] = {}
        """The same with each sweep as one line, as they are drawn, by their ids."""
        self.unfolded: set[str] = set()
        self._feed: RunsFeed | None = None
        self._field: FilterInput | None = None
        self._reading = False
        self._skipped = False
        self._unread = 0
        self._layout: Layout | None = None
        self._rows: dict[tuple[int, bool, bool], Row] = {}
        """Rows in this layout, by the lines of runs, which they keep, whether it is marked, and
        whether its warning is said above."""
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
        in_sight = tuple(line.id for entry in islice(
            self._entries.values(), top, top + self.size.height) for line in
            (entry.members if isinstance(entry, SweepLine) else (entry,)))

        def refreshed() -> tuple[RunsFeed, tuple[tuple[RunLine, ...], int]]:
            from gpu_panel.launch.run_feed import RunsFeed  # after the first frame

            feed = self._feed or RunsFeed()
            feed.first = in_sight
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
                        surely_rings(self.set_timer(
                            READ_ON, lambda: self.screen.is_active and self.poll_now()))
        finally:
            self._reading = False

    def show(self, found: Sequence[RunLine], unread: int = 0) -> None:
        """Show these runs; of the very same ones only the ages. `unread`: the number of those that
        are not read yet."""
        if found is self.lines and unread == self._unread and self._new is None:
            self.age()
            return
        self.lines, self._unread = tuple(found), unread
        self.waiting = sum(line.state == "queued" for line in found)
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
        self._entries = {one.id: one for one in run_line.fold(self._shown, self.unfolded)}
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
        key = next((name for name, entry in self._entries.items() if name == run or (
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
            counts += ["by " + "".join(c.title for c in these([self.order])) if self.order
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
            return "[ ] move in the queue"
        return "/ filter · m mark · n name · x remove · e again" if self.lines else ""

    # --- painting ------------------------------------------------------------------------------

    def build(self, width: int) -> tuple[Line | None, Sequence[Row]]:
        if self.lines is None:
            return None, [text_row("Looking for runs …")]
        if not self.lines:
            return None, [text_row("No runs yet. ctrl+l launches what is shown; in a shell:"),
                          *(Row("", (((f"  {line:<38}", "strong"), (f"  {does}", "dim")),))
                            for line, does in FIRST)]
        columns = layout(
            self.lines, width, self.columns, by=self.order, marks=bool(self.marked),
            hues=self.hues)
        same = self._layout is not None and columns.shape == self._layout.shape
        self._layout, before, self._rows = columns, self._rows if same else {}, {}
        rows, said = [], set[str]()
        for name, entry in self._entries.items():
            if isinstance(entry, SweepLine):
                row = run_line.sweep_row(entry, columns, self.marked, bool(self.wanted),
                                         entry.told in said)
            else:  # while one of ten thousand trains, all others have the row that they had
                key = id(entry), name in self.marked, entry.told in said
                row = self._rows[key] = before.get(key) or run_line.run_row(
                    entry, columns, *key[1:])
            said.add(entry.told)
            rows.append(row)
        if not rows:
            doubt = f": {self.wanted.doubt}" if self.wanted.doubt else ""
            rows.append(text_row(f"No run matches{doubt}. Esc shows all runs."))
        return run_line.head_line(columns, self.order, self.turned), rows

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
            self.wanted = query.parse(text)
            self._arrange()

    def action_clear(self) -> None:
        """Clear the marks; if there are none, the filter."""
        if self.marked:
            self.marked = set()
        else:
            self.wanted = query.parse("")
        self._arrange()

    def action_order(self) -> None:
        shown = [c.name for c in self._layout.columns
                 if c.order and c.name in self._layout.sizes] if self._layout else []
        known = [None, *shown]
        at = known.index(self.order) if self.order in known else -1
        self._sort_by(known[(at + 1) % len(known)])

    def action_best(self) -> None:
        """Sort by the best value and go to the best run; if they are sorted so, as before."""
        self.come_forward()
        self.enter()
        if "best" not in self.columns:
            self._show_columns([*self.columns, "best"])
        self._sort_by(None if self.order == "best" and not self.turned else "best")

    def action_turn(self) -> None:
        self._sort_by(self.order, not self.turned)

    def _sort_by(self, name: str | None, turned: bool = False) -> None:
        self.order, self.turned = name, turned
        self._arrange()
        self.scroll_to(y=0, animate=False)
        self.cursor = 0
        self._keep_choices()

    @work(exit_on_error=False, group="run", exclusive=True)
    async def action_columns(self) -> None:
        typed = await self.app.push_screen_wait(AskLine(
            "Columns of the runs", " ".join(self.columns), "Names, in the order in which they "
            f"stand: {', '.join(COLUMNS)}, and any key of the spec, such as train.lr. Usual are "
            f"{' '.join(DEFAULT)}.", longest=1000, does="accept",
            wrong=lambda text: next((f"there is no column {name}" for name in text.split()
                                     if find(name) is None), None)))
        if typed is not None:
            self._show_columns(typed.split())
            if self.order not in self.columns:
                self.order = None
            self._arrange()
            self._keep_choices()

    def _show_columns(self, names: Iterable[str]) -> None:
        known = tuple(c.name for c in these(list(dict.fromkeys(names))))
        self.columns = known if "run" in known else ("run", *known)

    def _read_choices(self) -> None:
        self._choices_read = True
        kept = theme.read().get("runs")
        if isinstance(kept, dict):
            names, order = kept.get("columns"), kept.get("order")
            if isinstance(names, list):
                self._show_columns(name for name in names if isinstance(name, str))
            column = find(order) if isinstance(order, str) else None
            if column is not None and column.order is not None:
                self.order, self.turned = order, kept.get("turned") is True

    @work(exit_on_error=False, group="choices", exclusive=True)
    async def _keep_choices(self) -> None:
        try:
            await in_thread(lambda: theme.keep("runs", lambda: {
                "columns": list(self.columns), "order": self.order, "turned": self.turned}))
        except OSError as err:
            self.notify(f"The columns can't be saved: {err}", severity="warning", markup=False)

    # --- the cursor and the marks ----------------------------------------------------------------

    def watch_cursor(self, old: int, new: int) -> None:
        super().watch_cursor(old, new)
        self._refresh_footer()

    @property
    def pointed(self) -> Pointed | None:
        """The sweep or the run under the cursor."""
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
        entry = self._entries.get(self.key_at_cursor or "")
        return entry if not isinstance(entry, SweepLine) else None

    @property
    def sweep_at_cursor(self) -> SweepLine | None:
        entry = self._entries.get(self.key_at_cursor or "")
        return entry if isinstance(entry, SweepLine) else None

    @property
    def targets(self) -> list[RunLine]:
        """The marked runs, also those that the filter hides; if none is, the one under the
        cursor, or all runs of the sweep there."""
        if self.marked:
            return [line for line in self.lines or () if line.id in self.marked]
        if (sweep := self.sweep_at_cursor) is not None:
            return list(sweep.members)
        return [line] if (line := self.line_at_cursor) is not None else []

    # --- what can be done with the runs --------------------------------------------------------

    def on_mount(self) -> None:
        self.set_interval(_LOOK, self._look)

    @work(exit_on_error=False, group="look")
    async def _look(self) -> None:
        """Have the run folders say how they are where they are, without waiting for that elsewhere.
        Also while another screen is shown, which reads those folders. One that has ended may still
        lack what a host has of it, which is a warning."""
        runs = [line.run for line in self.lines or () if line.live or line.warnings]
        if runs and not self._asking and not readonly.on:
            self._asking = True
            try:
                with guard(self.app):
                    await in_thread(lambda: _look_at(runs))
            finally:
                self._asking = False

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Allow stop for a live run and resume for one that has ended, so that the footer shows
        only one of them; for marked runs and for a sweep what can be done to several."""
        line, sweep, targets = self.line_at_cursor, self.sweep_at_cursor, self.targets
        several = bool(self.marked) or sweep is not None
        live = [target.live for target in targets]
        if action == "clear":
            return bool(self.marked or self.wanted)
        if action == "compare":
            return len(self.marked) > 1
        if action == "fold":
            return sweep is not None or (line is not None and line.sweep is not None)
        if action in ("stop", "remove") and several:
            asks = sweep is not None and not self.marked and sweep.may_ask
            return (any(live) or asks) if action == "stop" else not all(live)
        if action in _OF_ONE and sweep is not None:
            return False
        if action not in _DOES or sweep is not None:
            return True
        if line is None or (line.state == "unreadable" and action in ("resume", "again")):
            return None
        if action == "resume":
            return not line.live and not self.marked
        return line.live if action == "stop" else not line.live if action == "remove" else True

    def why_off(self, action: str, parameters: tuple[object, ...]) -> str:
        line, does = self.line_at_cursor, _DOES.get(action)
        if action == "compare":
            return "Mark two runs or more with m, to compare them"
        if does is None:
            return ""
        if self.marked or self.sweep_at_cursor is not None:
            return f"These runs can't be {does}" + \
                (": it is done to a single run" if action in _OF_ONE else "")
        return f"Run {line.id} can't be {does}: it is {line.state}" if line else "No run selected"

    def action_mark(self) -> None:
        """Mark the run under the cursor, or all runs of the sweep, or take the marks away; and go
        to the next."""
        if (key := self.key_at_cursor) is not None:
            self._mark(key)
            self.action_cursor_down()

    def _mark(self, key: str) -> None:
        """Mark the run of this row, or all runs of the sweep; if they are, take the marks away."""
        entry = self._entries.get(key)
        ids = {one.id for one in entry.members} if isinstance(entry, SweepLine) else {key}
        self.marked = self.marked - ids if ids <= self.marked else self.marked | ids
        self._arrange()

    def action_mark_all(self) -> None:
        shown = {line.id for line in self._shown}
        self.marked = self.marked - shown if shown <= self.marked else self.marked | shown
        self._arrange()

    def action_compare(self) -> None:
        from gpu_panel.several.screen import MOST, SeveralScreen

        if len(self.marked) > MOST:
            self.notify(f"At most {MOST} runs are compared; {len(self.marked)} are marked",
                        severity="warning", markup=False)
            return
        chosen = in_order(self.targets, self.order, self.turned)
        runs = [line.run for line in chosen]
        self.app.push_screen(SeveralScreen(runs))

    def on_rows_chosen(self, event: Rows.Chosen) -> None:
        event.stop()
        self.action_open()

    def action_open(self) -> None:
        if (sweep := self.sweep_at_cursor) is not None:
            from gpu_panel.several.screen import SeveralScreen

            self.app.push_screen(SeveralScreen(sweep=sweep.id))
        elif (line := self.line_at_cursor) is not None:
            self.open(line.run)

    def action_fold(self, open_it: bool) -> None:
        """Show the runs of the sweep under the cursor in the list, or as one line."""
        sweep, line = self.sweep_at_cursor, self.line_at_cursor
        name = sweep.id if sweep is not None else line.sweep.sweep if line and line.sweep else None
        if name is None:
            return
        (self.unfolded.add if open_it else self.unfolded.discard)(name)
        self._arrange()
        if not open_it and name in self.keys:
            self.cursor = self.keys.index(name)

    def open(self, run: Run) -> None:
        from gpu_panel.launch.run_page import store_of
        from gpu_panel.run.screen import RunScreen

        self.app.push_screen(RunScreen(run, store=store_of(self._stores, run),
                                       again=lambda: self.post_message(self.Again(run))))

    def placeholders(self) -> Values:
        """For the person's own commands. Blocks."""
        from gpu_panel.commands.own import of_run

        line = self.line_at_cursor
        return of_run(line.run) if line is not None else {}

    def action_code(self) -> None:
        from gpu_panel.commands.own import engine

        if (line := self.line_at_cursor) is not None:
            engine(self.app, "code", line.id)

    def action_again(self) -> None:
        if (line := self.line_at_cursor) is not None:
            self.post_message(self.Again(line.run))

    @guarded("export")
    async def action_export(self) -> None:
        """Write a report of the marked runs, or of the one under the cursor, or their figures."""
        from gpu_panel.exporting import export

        if targets := self.targets:
            await export(self.app, [line.id for line in targets])

    @guarded("run", exclusive=True)
    async def action_note(self) -> None:
        """Give the run under the cursor a name; a note is written by `gpu-engine note`."""
        from gpu_engine.runs import notes
        from gpu_panel.launch import run_actions

        if (line := self.line_at_cursor) is None:
            return
        await in_thread(lambda: notes.require_readable(line.run.path))
        known = await in_thread(lambda: notes.read(line.run.path))
        name = await self.app.push_screen_wait(AskLine(
            f"Name of run {line.id}", known.name or "", "Shown in place of the name that it was "
            f"started with; empty: {line.preset}. gpu-engine note {line.id} TEXT writes more.",
            longest=notes.LONGEST_NAME, may_be_empty=True))
        if name is not None:
            await run_actions.write_on(self.app, [line],
                                       lambda now: replace(now, name=name or None))
            self._list_anew()

    @guarded("run", exclusive=True)
    async def action_tags(self) -> None:
        from gpu_panel.launch import run_actions

        if not (targets := self.targets):
            return
        used = sorted({tag for line in self.lines or () for tag in line.tags})
        tags = targets[0].tags if len(targets) == 1 else None
        asking = run_actions.TagsDialog([line.id for line in targets], tags, used)
        typed = await self.app.push_screen_wait(asking)
        if typed or (typed == "" and tags is not None):
            await run_actions.write_on(self.app, targets, asking.change(typed))
            self._list_anew()

    @guarded("run", exclusive=True)
    async def action_judge(self, verdict: Literal["keep", "discard"]) -> None:
        """Say this of the marked runs, or of the one under the cursor; or take it back, if it is
        said of all of them."""
        from gpu_panel.launch import run_actions

        if targets := self.targets:
            new = None if all(line.verdict == verdict for line in targets) else verdict
            await run_actions.write_on(self.app, targets, lambda now: replace(now, verdict=new))
            self._list_anew()

    @guarded("run", exclusive=True)
    async def action_stop(self) -> None:
        from gpu_panel.launch import run_actions

        sweep = self.sweep_at_cursor
        if sweep is not None and not self.marked:  # more than its runs of now: it would go on
            from gpu_engine.sweep import group
            from gpu_panel.several import screen

            found = await in_thread(lambda: group.find(sweep.id))
            await screen.ask_and_stop(self.app, found)
        elif targets := self.targets:
            await run_actions.ask_and_stop(self.app, targets)
        self.poll_now()

    @guarded("move")
    async def action_move(self, to: str) -> None:
        """Move the run under the cursor in the queue: "first" or "last"."""
        if (line := self.line_at_cursor) is None:
            return
        if not line.waits:
            self.notify("Slurm orders its own queue" if line.state == "queued" else
                        f"Run {line.id} does not wait in the queue: it is {line.state}",
                        markup=False)
            return
        from gpu_engine.queue import serve

        async with self._moves:
            await in_thread(lambda: serve.move(line.run, to))
        same.done(self.app, f"Run {line.id} was moved", [["queue", "move", line.id, to]])
        self.poll_now()

    @guarded("run", exclusive=True)
    async def action_resume(self) -> None:
        from gpu_panel.run.resume import ResumeDialog, ResumeOptions

        if (line := self.line_at_cursor) is None:
            return
        options = await in_thread(lambda: ResumeOptions.read(line.run))
        if await self.app.push_screen_wait(ResumeDialog(line.run, options)):
            self._list_anew()
            self.open(line.run)

    @guarded("run", exclusive=True)
    async def action_remove(self) -> None:
        from gpu_panel.launch import run_actions

        if (targets := self.targets) and await run_actions.ask_and_remove(self.app, targets):
            self._list_anew()

    def _list_anew(self) -> None:
        if self._feed is not None:
            self._feed.relist()
        self.poll_now()


def _look_at(runs: Sequence[Run]) -> None:
    from gpu_engine.places import verbs  # after the first frame

    verbs.look_at_all(runs)
