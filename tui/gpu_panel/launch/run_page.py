"""The page of the preview: a run, made of the panes of the screen that enter opens, with less
room."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from gpu_engine.runs.folder import Run
from gpu_panel.common.painting import put
from gpu_panel.launch.run_line import Pointed
from gpu_panel.run.banner import Banner, banner
from gpu_panel.run.chart import LossPane, MemoryPane
from gpu_panel.run.headline import DOT, figures, heading
from gpu_panel.run.log import LogPane
from gpu_panel.run.pane import Moment, RunPane
from gpu_panel.run.ranks import RanksPane
from gpu_panel.run.sheets import about
from gpu_panel.run.store import RunStore

SOON = 0.05
"""Seconds for which a page waits for its first figures; what was shown stays until then."""
AGAIN, CATCHING_UP = 0.5, 0.1
"""Seconds between two polls of what was read: usually, and while old events are being read."""


NARROW = 64
"""Cells of a page from which on a sentence of the banner has more than a few words a line."""
MOST = 4
"""Runs that are remembered: a store takes up to some tens of MiB."""


def store_of(stores: dict[str, RunStore], run: Run) -> RunStore:
    """What has been read of a run, also by a screen that showed it before. `stores`: of the runs
    that were looked at last, by their folders."""
    store = stores.pop(str(run.path), None) or RunStore(run)
    stores[str(run.path)] = store  # the last one looked at is the last to go
    while len(stores) > MOST:
        del stores[next(iter(stores))]
    return store


class RunPage(Vertical):
    """Loss and memory, the ranks, the end of the log; what failed or what it waits for above. Its
    panes take no focus here."""

    DEFAULT_CSS = """
    RunPage {
        display: none;
        #run-facts { height: 1; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis; }
        #run-banner { height: auto; max-height: 25%; }
        &.-narrow #run-banner { text-wrap: nowrap; text-overflow: ellipsis; }
        #run-plan { padding: 1 1 0 1; height: 1fr; }
        #run-curves { height: 2fr; MemoryPane { margin-left: 1; } }
        #run-ranks { max-height: 40%; }
        #run-log { height: 1fr; min-height: 1; }
        &.-failed { #run-curves { height: 1fr; } #run-banner { max-height: 50%; } }
    }
    """

    def __init__(self, stores: dict[str, RunStore]) -> None:
        super().__init__()
        self.stores = stores
        self.store: RunStore | None = None
        """What has been read of what is shown; None before the first."""
        self._rank: int | None = None

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
        """The list keeps the focus."""
        for widget in self.query("*"):
            widget.can_focus = False

    def on_resize(self) -> None:
        self.set_class(self.size.width < NARROW, "-narrow")
        self.paint()

    async def begin(self, at: Pointed) -> None:
        """Get ready to be shown: what was shown before stays on the screen until this returns."""
        store = store_of(self.stores, at.lines[0].run)
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

    async def follow(self) -> None:
        """Read and paint until nothing changes any more. May be cancelled and called again."""
        store = self.store
        assert store is not None
        reading = asyncio.create_task(store.follow())
        try:
            shown: object = None
            while True:
                now = (store.version, store.caught_up)
                if now != shown or self._changes():
                    shown = now
                    self.paint()
                elif store.caught_up:
                    return
                await asyncio.wait({reading},
                                   timeout=AGAIN if store.caught_up else CATCHING_UP)
                if reading.done():
                    reading.result()
        finally:
            reading.cancel()

    def _changes(self) -> bool:
        """Whether anything of it may still change by itself."""
        state = self.store.state if self.store is not None else None
        return state is None or state.live

    def _panes(self) -> Iterator[RunPane]:
        yield from (pane for pane in self.query("*") if isinstance(pane, RunPane))

    def paint(self) -> None:
        store, now = self.store, time.time()
        # It may get a size before it has its parts.
        if store is None or not self.size or not self.children:
            return
        what, how_far = heading(store, now, self.size.width - 4)
        if isinstance(frame := self.parent, Widget) and self.display:
            frame.border_title = Content.assemble(what[1:].rstrip(), " ─ ", how_far.rstrip())
            frame.border_subtitle = Content(self._keys(store))
        lines, tone = banner(store, now)
        facts = figures(store, now)
        self._arrange(store, bool(lines), bool(facts.plain.strip()))
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

    def _arrange(self, store: RunStore, said: bool, facts: bool) -> None:
        """Show the parts that there is room for. `said`: whether the banner has anything to say;
        `facts`: whether there are figures. Why it failed comes before the curves."""
        high, waits = self.size.height, store.turn is not None
        failed = store.state is not None and store.state.state in ("failed", "lost")
        # A person's own command may record nothing to draw.
        command = store.plan is not None and store.plan.spec.task.command is not None
        curves = bool(len(store.loss.all)) or not (waits or command or not self._changes())
        ranks = sum(max(len(view.gpu_allocated), 1) for view in store.ranks.values())
        curves = curves and (high >= 11 or not failed)
        self.set_class(failed, "-failed")
        self.query_one("#run-ranks").styles.height = ranks + 2
        for part, shown in (("facts", facts and high >= 10), ("banner", said), ("plan", waits),
                            ("curves", curves), ("ranks", ranks and high >= 14 and not waits),
                            ("log", not waits and (high >= 14 or failed or not curves))):
            self.query_one(f"#run-{part}").display = bool(shown)

    def on_run_pane_rank_chosen(self, event: RunPane.RankChosen) -> None:
        """A click on a rank shows its log and its curves on top, as on the whole screen."""
        self._rank = event.pass_on(self._panes())
        self.call_after_refresh(self.paint)

