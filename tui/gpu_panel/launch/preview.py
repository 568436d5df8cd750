"""The preview: what the cursor of the list of runs points at, beside or below that list.

The cursor only says where it is. Once it has rested there for a moment, the page is made ready, and
then replaces what is shown; so a held arrow key reads nothing on its way. A page reads only while
it can be seen, and not at all once its runs have ended and were read: the list notices when one
of them changes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from textual.containers import Container
from textual.timer import Timer
from textual.widget import Widget
from textual.worker import Worker

from gpu_panel.common.errors import guarded
from gpu_panel.common.panes import Pane
from gpu_panel.launch.run_line import Pointed
from gpu_panel.textual_private import surely_rings

if TYPE_CHECKING:
    from gpu_panel.launch.run_page import RunPage
    from gpu_panel.run.store import RunStore
    from gpu_panel.several.curves import SweepPage

_P = TypeVar("_P", bound=Widget)
AGES = 10.0
"""Seconds between two times that what does not change any more is drawn again, as it has ages."""
SETTLE = 0.05
"""Seconds for which the cursor must rest: longer than between two keys of one that is held."""


class PreviewPane(Container, Pane):
    """Shows what the cursor of the list of runs points at."""

    NAME = "preview"
    TITLE = "Preview"
    TAB = False
    HELP = """The run under the cursor of the list, as it is now: loss and memory of its ranks, what
each rank does, the end of its log; why it has failed, or what it waits for. Of a sweep, the losses
of its runs, and what each value has led to."""

    def __init__(self, stores: dict[str, RunStore]) -> None:
        """`stores`: what has been read of runs, by their folders."""
        super().__init__(id=self.NAME)
        self._stores = stores
        self._at: Pointed | None = None
        self._rest: Timer | None = None
        self._page: RunPage | SweepPage | None = None
        self._reader: Worker[None] | None = None

    def on_mount(self) -> None:
        self.set_interval(AGES, self._paint_ages)

    def _paint_ages(self) -> None:
        if self._page is not None and self.can_be_seen and self._reader is not None \
                and self._reader.is_finished:
            self._page.paint()

    def point(self, at: Pointed | None) -> None:
        """Show this soon. Called for every move of the cursor, and when a run has changed."""
        before, self._at = self._at, at
        if at is not None and before is not None and at.key == before.key:
            if self._rest is None and (self._reader is None or self._reader.is_finished):
                self.poll()  # it had ended; perhaps it goes on
            return
        if self._rest is not None:
            self._rest.stop()
        self._rest = surely_rings(self.set_timer(SETTLE, self._rested))

    def _rested(self) -> None:
        self._rest = None
        self.poll()

    def poll(self) -> None:
        """Read and show what the cursor points at, if it can be seen; else stop reading."""
        if self._at is not None and self.can_be_seen:
            self._reader = self._read(self._at)
        else:
            self.rest()

    def rest(self) -> None:
        """Read nothing more for now."""
        self.workers.cancel_group(self, "preview")
        if self._at is None and self._page is not None:
            self._page.display = False
            self._page = None
            self.border_title, self.border_subtitle = self.TITLE, ""

    @property
    def can_be_seen(self) -> bool:
        """Whether it is on the screen that is on top, and not in a tab behind."""
        return self.is_mounted and self.screen.is_active and self.size.height > 0 \
            and all(node.display for node in self.ancestors_with_self)

    def on_show(self) -> None:
        """It has been hidden."""
        self.poll()

    def on_hide(self) -> None:
        """Nobody sees it: the tab of another pane is in front, or there is no room."""
        self.rest()

    @guarded("preview", exclusive=True)
    async def _read(self, at: Pointed) -> None:
        page: RunPage | SweepPage
        if at.sweep is None:
            from gpu_panel.launch.run_page import RunPage

            page = await self._page_of(RunPage, self._stores)
            await page.begin(at)
        else:
            from gpu_panel.several.curves import SweepPage

            page = await self._page_of(SweepPage)
            await page.begin(at.sweep)
        if self._page is not None and self._page is not page:
            self._page.display = False
        page.display = True
        self._page = page
        await page.follow()

    async def _page_of(self, kind: type[_P], *given: Any) -> _P:
        """The page of this class, which is made of what is `given` when it is first needed."""
        found = self.query_children(kind)
        page = found.first() if found else kind(*given)
        if not found:
            await self.mount(page)
        while not page.is_mounted:  # whoever mounted it was given up before it had its parts
            await asyncio.sleep(0.01)
        return page
