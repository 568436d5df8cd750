"""The base of what the preview shows: a page for a run, for a sweep, for several runs."""

from __future__ import annotations

import asyncio
from typing import Any

from textual.containers import Vertical
from textual.content import Content
from textual.widget import Widget

from gpu_panel.common.reading import Followed
from gpu_panel.launch.runs.line import Pointed
from gpu_panel.launch.stores import Stores

SOON = 0.05
"""Seconds for which a page waits for its first figures; what was shown stays until then."""
AGAIN, CATCHING_UP = 0.5, 0.1
"""Seconds between two polls of what was read: usually, and while old events are being read."""


class Page(Vertical):
    """Shows what the cursor points at by the panes of its screen, which take no focus here."""

    DEFAULT_CSS = "Page { display: none; }"

    def __init__(self, stores: Stores) -> None:
        super().__init__()
        self.stores = stores
        self.store: Any = None
        """What has been read of what is shown, a `Followed`; None before the first."""

    def on_mount(self) -> None:
        """The list keeps the focus."""
        for widget in self.query("*"):
            widget.can_focus = False

    async def begin(self, at: Pointed) -> None:
        """Get ready to be shown: what was shown before stays on the screen until this returns."""
        raise NotImplementedError

    def paint(self) -> None:
        raise NotImplementedError

    def on_resize(self) -> None:
        self.paint()

    def entitle(self, title: Content, keys_here: str) -> None:
        """Say in the frame what is shown, and which keys are for it."""
        if isinstance(frame := self.parent, Widget) and self.display:
            frame.border_title, frame.border_subtitle = title, Content(keys_here)

    async def follow(self) -> None:
        """Read and paint until nothing changes any more. May be cancelled and called again."""
        store: Followed = self.store
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
        return self.store is None or self.store.live
