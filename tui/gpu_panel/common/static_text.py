"""Texts in places that are laid out already."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.widgets import Static


def put(place: Static, content: Content, *, layout: bool = True) -> None:
    """Show `content` in `place`. If that is what it shows, nothing happens: Textual would lay the
    whole screen out again. `layout`: whether its height may change."""
    shown = place.content
    if not (content.is_same(shown) if isinstance(shown, Content) else content.plain == shown == ""):
        place.update(content, layout=layout)


def put_lines(place: Static, lines: Sequence[str]) -> None:
    """Show `lines` in `place`, which is hidden if there are none."""
    put(place, Content("\n".join(lines)))
    if place.display != bool(lines):
        place.display = bool(lines)
