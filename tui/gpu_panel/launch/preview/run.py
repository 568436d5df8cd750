"""The preview of one run: the panes of its screen with less room."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Static

from gpu_engine.runs.folder import Run
from gpu_panel.common.painting import put
from gpu_panel.launch import room
from gpu_panel.launch.preview.page import SOON, Page
from gpu_panel.launch.runs.line import Pointed
from gpu_panel.run.banner import Banner, banner
from gpu_panel.run.chart import LossPane, MemoryPane
from gpu_panel.run.headline import DOT, figures, heading
from gpu_panel.run.log.pane import LogPane
from gpu_panel.run.log.view import LogView
from gpu_panel.run.pane import Moment, RunPane
from gpu_panel.run.ranks import RanksPane
from gpu_panel.run.sheets import about
from gpu_panel.run.store import RunStore


class RunPage(Page):
    """Loss and memory, the ranks, the end of the log; what failed or what it waits for above."""

    DEFAULT_CSS = """
    RunPage {
        #run-facts { height: 1; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis; }
        #run-plan { padding: 1 1 0 1; }
        #run-curves MemoryPane { margin-left: 1; }
        LogPane { min-height: 1; }
    }
    """

    store: RunStore | None
    _rank: int | None = None
    _parts: room.Parts | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="run-facts", markup=False)
        yield Banner(id="run-banner", markup=False)
        with Horizontal(id="run-curves"):
            yield LossPane(id="run-loss")
            yield MemoryPane(id="run-memory")
        yield RanksPane(id="run-ranks")
        yield LogPane(id="run-log")
        yield Static(id="run-plan", markup=False)

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one(LogView).wrapped = True  # nobody can move to the end of a long line here

    async def begin(self, at: Pointed) -> None:
        run: Run = at.lines[0].run
        store = self.stores.run(run)
        if store.caught_up:  # perhaps a while ago
            await store.poll_now()
        if store is self.store:
            return
        if not store.caught_up:
            reading = asyncio.create_task(store.follow())
            with suppress(TimeoutError):
                await store.wait_for(lambda s: s.caught_up, SOON)
            reading.cancel()
        self.store, self._rank = store, None
        for pane in self._panes():
            pane.anew()

    def _changes(self) -> bool:
        state = self.store.state if self.store is not None else None
        return state is None or state.live

    def _panes(self) -> Iterator[RunPane]:
        yield from (pane for pane in self.query("*") if isinstance(pane, RunPane))

    def paint(self) -> None:
        store, now = self.store, time.time()
        if store is None or not self.size:
            return
        what, how_far = heading(store, now, self.size.width - 4)
        self.entitle(Content.assemble(what[1:].rstrip(), " ─ ", how_far.rstrip()),
                     self._keys(store))
        lines, tone = banner(store, now)
        if store.state is not None and store.state.state == "completed" and len(lines) == 1:
            lines = []  # the title and the facts say it
        facts = figures(store, now)
        self._arrange(store, lines, bool(facts.plain.strip()))
        put(self.query_one("#run-facts", Static), facts, layout=False)
        self.query_one(Banner).show(lines, tone)
        if store.turn is not None:
            put(self.query_one("#run-plan", Static), Content("\n").join(about(store, now)[:-1]))
        moment = Moment(now, self._changes(), self._rank)
        for pane in self._panes():
            if pane.display:
                pane.paint(store, moment)

    def _keys(self, store: RunStore) -> str:
        if store.turn is not None:
            return "enter whole screen" + DOT + "[ ] move" + DOT + "s out of the queue"
        return "enter whole screen" + DOT + ("s stop" if self._changes() else "u resume" + DOT
                                             + "e again")

    def _arrange(self, store: RunStore, lines: list[str], facts: bool) -> None:
        """Give each part its rows, if they are others than before."""
        width = max(self.size.width - 2, 1)
        state = store.state.state if store.state is not None else ""
        curves = bool(len(store.loss.all)) or (
            self._changes() and store.turn is None and not self._bare(store))
        parts = room.share(
            self.size.height, ranks=sum(max(len(v.gpu_allocated), 1) for v in store.ranks.values()),
            banner=sum(-(-max(len(line), 1) // width) for line in lines),
            facts=facts, curves=curves, failed=state in ("failed", "lost"),
            waits=store.turn is not None, lines=self.query_one(LogPane).lines_wanted)
        if parts == self._parts:
            return
        self._parts = parts
        for where, rows in (("#run-facts", parts.facts), ("#run-banner", parts.banner),
                            ("#run-curves", parts.curves), ("#run-ranks", parts.ranks),
                            ("#run-log", parts.log), ("#run-plan", parts.plan)):
            part = self.query_one(where)
            part.display = rows > 0
            part.styles.height = rows
            part.styles.max_height = rows

    def _bare(self, store: RunStore) -> bool:
        """Whether a person's own command records nothing to draw, so far."""
        return store.plan is not None and store.plan.spec.task.command is not None \
            and not len(store.loss.all)

    def on_run_pane_rank_chosen(self, event: RunPane.RankChosen) -> None:
        """A click on a rank shows its log and its curves on top, as on the whole screen."""
        self._rank = event.pass_on(self._panes())
        self.call_after_refresh(self.paint)
