"""The part of the form that is closed at first: "▶ more"."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from textual.widget import Widget
from textual.widgets import Collapsible


class More(Collapsible):
    """What is needed now and then, drawn when it is opened first: these are more widgets than the
    rest of the screen has. Opened by the person it comes into view, opened for a problem the field
    with the problem does, unless the person is in a field: that one stays in view."""

    def __init__(self, make: Callable[[], Iterable[Widget]], fill: Callable[[], None]) -> None:
        """`make` makes its widgets; `fill`, called once they are there, fills them."""
        # The class is set here too: setting it after mounting would style all fields again.
        super().__init__(title="more", id="more", collapsed=True, classes="-collapsed")
        self._make = make
        self._fill = fill
        self._field: Widget | None = None
        self._drawing = asyncio.Lock()
        self.drawn = False

    async def draw(self) -> None:
        """Draw and fill its widgets, if they are not there yet."""
        async with self._drawing:
            if self.drawn:
                return
            with self.app.batch_update():  # so that no half of it is painted
                await self.query_one(self.Contents).mount_all(self._make())
                self.drawn = True
                self._fill()

    async def on_collapsible_title_toggle(self) -> None:
        """Called before Textual opens or closes it. Keys that are typed ahead wait for this."""
        await self.draw()

    async def open(self) -> None:
        """Open it as the person does."""
        await self.draw()
        self.collapsed = False

    def open_at(self, field: Widget) -> None:
        """Open it for a problem with `field`, once it is drawn; nothing where it is open."""
        if self.collapsed:
            self._field = field
            self.collapsed = False

    def scroll_visible(self, *args: object, **options: object) -> None:
        """Called by Textual once it is open."""
        field, self._field = self._field, None
        if field is None:
            super().scroll_visible(*args, **options)  # pyright: ignore[reportArgumentType]
        elif not (isinstance(self.parent, Widget) and self.parent.has_focus_within):
            field.scroll_visible(animate=False)
