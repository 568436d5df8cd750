"""The runs pane: what can be done with the runs in the list."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual import events, work
from textual.binding import BindingType
from textual.message import Message

from gpu_panel import keys, readonly
from gpu_panel.commands import same
from gpu_panel.common.background import in_thread
from gpu_panel.common.errors import guard, guarded
from gpu_panel.common.panes import Pane
from gpu_panel.launch.runs.columns import MARK_WIDTH, in_order
from gpu_panel.launch.runs.listing import RunsList
from gpu_panel.launch.runs.sweeps import SweepLine

if TYPE_CHECKING:
    from gpu_engine.runs.folder import Run
    from gpu_panel.commands.own import Values
    from gpu_panel.common.rows import Rows
    from gpu_panel.launch.runs.line import RunLine
    from gpu_panel.launch.stores import Stores

_ASK_SLURM = 3.0
"""Seconds between two checks whether there are jobs of Slurm, and whether it is time to ask."""
_DOES = {"stop": "stopped", "resume": "resumed", "remove": "removed", "again": "loaded",
         "note": "named", "tags": "tagged", "move": "moved", "open": "opened"}
_OF_ONE = ("resume", "again", "note", "move")


class RunsPane(RunsList, Pane):  # pyright: ignore[reportIncompatibleMethodOverride]  Textual's scroll_to
    """The list of runs, and what can be done with one or several of them."""

    NAME = "runs"
    TITLE = "Runs"
    CALLED = "the runs"
    KEYS = keys.of("runs", "filter")
    BINDINGS: ClassVar[list[BindingType]] = keys.of_focus(keys.of("runs"))
    CHANGES: ClassVar[frozenset[str]] = frozenset({
        "stop", "resume", "remove", "prune", "move", "note", "tags", "export"})
    HELP = """Runs go on when the panel closes; this list finds them again. The preview shows
the run under the cursor, live or finished; enter shows it on a whole screen. s asks it to
save and end; u resumes a run that has ended; e loads a run's settings into the
form. x removes a finished run with its checkpoints for good, X all but the newest; both ask.

Queued runs follow the running ones in the order of the queue, with what each waits for. [ and ]
move one forward and back, { and } to the front and to the end; s removes it.

The runs of a sweep are one line: enter opens its table, → and ← show and hide its runs here.

/ looks for runs: each word is text that a run must have anywhere, or FIELD:TEXT with one of id,
name, preset, task, mode, tag, state and note, as in state:failed tag:lr; -WORD leaves out what
matches. o sorts by the next column, O reverses the order, C chooses the columns; a click on a
column's head sorts by it. n gives a run a name and a note, t tags.

m marks runs. Then s, x and t are for all marked runs, after one question that names them, and c
compares them. Esc clears the marks, then the filter."""

    @dataclass
    class Again(Message):
        run: Run

    def __init__(self, stores: Stores) -> None:
        """`stores`: what has been read of runs, for the screens that are opened here."""
        super().__init__()
        self._stores = stores
        self._asking = False
        self._moves = asyncio.Lock()
        """Held while a run is moved in the queue, so that moves follow each other."""

    def on_mount(self) -> None:
        self.set_interval(_ASK_SLURM, self._ask_slurm)

    @work(exit_on_error=False, group="slurm")
    async def _ask_slurm(self) -> None:
        """Have the run folders say what Slurm says, without waiting for it elsewhere. Also while
        another screen is shown, which reads those folders."""
        if not self._asking and not readonly.on:
            self._asking = True
            try:
                with guard(self.app):
                    await in_thread(_ask_slurm)
            finally:
                self._asking = False

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Allow stop for a live run and resume for one that has ended, so that the footer shows
        only one of them; for marked runs what can be done to several."""
        line = self.line_at_cursor
        if action == "clear":
            return bool(self.marked or self.wanted)
        if action == "compare":
            return len(self.marked) > 1
        if self.marked and action in ("stop", "resume", "remove"):
            live = [one.live for one in self.targets]
            return {"stop": any(live), "resume": False, "remove": not all(live)}[action]
        sweep = self.sweep_at_cursor
        if action == "fold":
            return sweep is not None or (line is not None and line.sweep is not None)
        if sweep is not None:
            live = [one.live for one in sweep.members]
            return {"stop": any(live), "remove": not all(live), "open": True, "mark": True,
                    "tags": True}.get(action, action not in _OF_ONE)
        if line is not None and line.state == "unreadable" \
                and action in ("resume", "remove", "again"):
            return None
        if action == "resume":
            return line is not None and not line.live
        if action == "stop" and line is not None:
            return line.live
        if action in ("stop", "open", "remove", "again", "mark", "note", "tags"):
            return None if line is None or (action == "remove" and line.live) else True
        return True

    def why_off(self, action: str, parameters: tuple[object, ...]) -> str:
        line, does = self.line_at_cursor, _DOES.get(action)
        if action == "compare":
            return "Mark two runs or more with m, to compare them"
        if does is None:
            return ""
        if self.sweep_at_cursor is not None and action in _OF_ONE:
            return f"Only a single run can be {does}: → shows those of this sweep"
        if self.marked and action == "resume":
            return "Only a single run can be resumed: esc clears the marks"
        if self.marked or line is None:
            return f"None of these runs can be {does}" if self.marked else "No run selected"
        if line.live:
            return f"Run {line.id} can't be {does}: it is {line.state}; s stops it"
        return f"Run {line.id} can't be {does}: it is {line.state}"

    def action_mark(self) -> None:
        """Mark the run under the cursor, or all runs of the sweep, or take the marks away; and go
        to the next."""
        if (key := self.key_at_cursor) is not None:
            self._mark(key)
            self.action_cursor_down()

    def _mark(self, key: str) -> None:
        """Mark the run of this row, or all runs of the sweep; if they are, take the marks away."""
        ids = next(({one.id for one in entry.members} for entry in self._entries
                    if isinstance(entry, SweepLine) and entry.id == key), {key})
        self.marked = self.marked - ids if ids <= self.marked else self.marked | ids
        self._arrange()

    def action_mark_all(self) -> None:
        shown = {line.id for line in self._shown}
        self.marked = self.marked - shown if shown <= self.marked else self.marked | shown
        self._arrange()

    def action_compare(self) -> None:
        from gpu_panel.compare.screen import CompareScreen
        from gpu_panel.compare.store import MOST

        if len(self.marked) > MOST:
            self.notify(f"At most {MOST} runs are compared; {len(self.marked)} are marked",
                        severity="warning", markup=False)
            return
        chosen = in_order(self.targets, self.order, self.turned)
        runs = [line.run for line in chosen]
        self.app.push_screen(CompareScreen(runs, self._stores.compared(runs)))

    def on_click(self, event: events.Click) -> None:
        """A click opens a run; with ctrl, or on the column of marks, it marks it."""
        offset = event.get_content_offset(self)
        if offset is None or offset.y == 0:
            return
        on_mark = bool(self.marked) and offset.x < MARK_WIDTH
        if (event.ctrl or on_mark) and (key := self.key_at(offset.y)) is not None:
            event.prevent_default()  # of Rows: it would open the run
            self._mark(key)

    def on_rows_chosen(self, event: Rows.Chosen) -> None:
        event.stop()
        self.action_open()

    def action_best(self) -> None:
        self.come_forward()
        self.enter()
        super().action_best()

    def action_open(self) -> None:
        if (sweep := self.sweep_at_cursor) is not None:
            from gpu_panel.sweep.screen import SweepScreen

            self.app.push_screen(SweepScreen(sweep.id, self._stores.sweep(sweep.id)))
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
        from gpu_panel.run.screen import RunScreen

        self.app.push_screen(RunScreen(run, store=self._stores.run(run),
                                       again=lambda: self.post_message(self.Again(run))))

    def placeholders(self) -> Values:
        """For the person's own commands. Blocks."""
        from gpu_panel.commands.own import of_run

        line = self.line_at_cursor
        return of_run(line.run) if line is not None else {}

    def action_again(self) -> None:
        if (line := self.line_at_cursor) is not None:
            self.post_message(self.Again(line.run))

    @guarded("export")
    async def action_export(self) -> None:
        """Write a report of the marked runs, or of the one under the cursor, or their figures."""
        from gpu_panel.export.exporting import export

        if targets := self.targets:
            await export(self.app, [line.id for line in targets])

    @guarded("run", exclusive=True)
    async def action_note(self) -> None:
        from gpu_engine.runs import notes
        from gpu_panel.launch.runs import several
        from gpu_panel.launch.runs.notes_dialog import NoteDialog

        if (line := self.line_at_cursor) is None:
            return
        await in_thread(lambda: notes.require_readable(line.run.path))
        known = await in_thread(lambda: notes.read(line.run.path))
        change = await self.app.push_screen_wait(NoteDialog(line.id, line.preset, known))
        if change is not None:
            await several.write_on(self.app, [line], change)
            self._list_anew()

    @guarded("run", exclusive=True)
    async def action_tags(self) -> None:
        from gpu_panel.launch.runs import several
        from gpu_panel.launch.runs.notes_dialog import TagsDialog

        if not (targets := self.targets):
            return
        used = sorted({tag for line in self.lines or () for tag in line.tags})
        tags = targets[0].tags if len(targets) == 1 else None
        asking = TagsDialog([line.id for line in targets], tags, used)
        typed = await self.app.push_screen_wait(asking)
        if typed or (typed == "" and tags is not None):
            await several.write_on(self.app, targets, asking.change(typed))
            self._list_anew()

    @guarded("run", exclusive=True)
    async def action_stop(self) -> None:
        from gpu_panel.launch.runs import several

        if targets := self.targets:
            await several.ask_and_stop(self.app, targets)
            self.poll_now()

    @guarded("move")
    async def action_move(self, to: str) -> None:
        """Move the run under the cursor in the queue: "up", "down", "first" or "last"."""
        if (line := self.line_at_cursor) is None:
            return
        if not line.waits:
            self.notify(f"Run {line.id} does not wait in the queue: it is {line.state}",
                        markup=False)
            return
        from gpu_engine.queue import change

        async with self._moves:
            await in_thread(lambda: change.move(line.run, to))
        same.done(self.app, f"Run {line.id} was moved", [["queue", "move", line.id, to]])
        self.poll_now()

    @guarded("run", exclusive=True)
    async def stop(self, line: RunLine, title: str) -> None:
        from gpu_panel.launch.runs import several

        await several.ask_and_stop(self.app, [line], title)

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
        from gpu_panel.launch.runs import several

        if (targets := self.targets) and await several.ask_and_remove(self.app, targets):
            self._list_anew()

    @guarded("run", exclusive=True)
    async def action_prune(self) -> None:
        from gpu_panel.launch.runs.several import ask_and_prune

        if self.lines and await ask_and_prune(self.app):
            self._list_anew()

    def _list_anew(self) -> None:
        if self._feed is not None:
            self._feed.relist()
        self.poll_now()


def _ask_slurm() -> None:
    from gpu_engine.slurm import watch  # after the first frame

    watch.refresh()
