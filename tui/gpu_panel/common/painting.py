"""Having no more drawn again than has changed: Textual draws, and sends to the terminal, all of a
widget that is refreshed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual.content import Content
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Static


def refresh_changed(widget: Widget, drawn: dict[int, Strip], line: Callable[[int], Strip]) -> None:
    """Have those rows of a widget drawn again that have changed. `drawn`: what `render_line` has
    returned last for each row; `line`: what it would return now."""
    rows = [y for y in range(widget.size.height) if drawn.get(y) != line(y)]
    if rows:
        widget.refresh(*(Region(0, y, max(widget.size.width, 1), 1) for y in rows))


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


def entitle(widget: Widget, title: str | Content | None = None,
            subtitle: str | Content | None = None) -> None:
    """Set the title or the subtitle in a widget's frame, those that are not None. A new one has all
    of the widget drawn again."""
    for name, text in (("border_title", title), ("border_subtitle", subtitle)):
        content = Content(text) if isinstance(text, str) else text
        if content is not None and (getattr(widget, name) or "") != content.markup:
            setattr(widget, name, content)
