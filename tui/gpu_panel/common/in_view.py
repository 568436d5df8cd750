"""A part of a screen that scrolls and keeps the field with the focus in view."""

from __future__ import annotations

from textual import on
from textual.containers import VerticalScroll
from textual.events import MouseScrollDown, MouseScrollUp
from textual.geometry import Offset, Size
from textual.screen import Screen
from textual.scrollbar import ScrollDown, ScrollTo, ScrollUp
from textual.widget import Widget


class FocusInView(VerticalScroll, inherit_bindings=False):  # its up and down would scroll
    """Whenever rows above the field with the focus grow or shrink, or there is less room, it is
    scrolled back into view, unless the person has scrolled away from it. A new size of the terminal
    brings it back in any case.

    Textual scrolls only when the focus moves. How often everything is laid out anew until all rows
    have their heights can't be told, as rows that wrap take theirs in a second layout."""

    _at: tuple[Widget, int, Size, Size, Size] | None = None
    """As of the last layout: the widget with the focus, its row within all that can be scrolled,
    its size, ours, and the terminal's."""
    _scrolled: Offset | None = None
    """How far we were scrolled then."""
    _by_hand = False
    """Whether the person has scrolled since it was last brought into view."""
    _wanted = True
    """Whether it is to be in view: not where the person has scrolled away from it."""

    def on_mount(self) -> None:
        # At once: a moment later it may have been scrolled further than it was laid out.
        self.screen.screen_layout_refresh_signal.subscribe(self, self._follow, immediate=True)

    @on(MouseScrollUp)
    @on(MouseScrollDown)
    @on(ScrollUp)  # of the scroll bar, as the two below
    @on(ScrollDown)
    @on(ScrollTo)
    def _scrolled_by_hand(self) -> None:
        self._by_hand = True

    def _follow(self, screen: Screen[object]) -> None:
        focused = screen.focused
        if focused is None or self not in focused.ancestors or not focused.region:
            return
        row = focused.region.y - self.region.y + self.scroll_offset.y
        before, now = self._at, (focused, row, focused.size, self.size, screen.size)
        scrolled = self._scrolled != self.scroll_offset
        self._at, self._scrolled = now, self.scroll_offset
        if before is None:
            return
        moved, resized = before[0] is not focused, before[3:] != now[3:]
        if moved or before[-1] != screen.size:
            self._wanted, self._by_hand = True, False
        seen = focused.region in self.scrollable_content_region
        if resized or (now != before and not moved):  # Textual scrolls to what has got the focus
            if self._wanted and not seen:
                focused.scroll_visible(animate=False)
        elif scrolled:
            self._wanted = seen or (self._wanted and not self._by_hand)
