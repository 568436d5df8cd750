"""Having no more drawn again than has changed: Textual draws, and sends to the terminal, all of a
widget that is refreshed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.cells import get_character_cell_size
from rich.style import Style
from textual.content import Content
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Static

NEAR = 8
"""Cells between two changes from which on they are sent apart: to move the cursor and set the style
again takes more bytes than a few cells."""


def refresh_changed(widget: Widget, drawn: dict[int, Strip], line: Callable[[int], Strip]) -> None:
    """Have those cells of a widget drawn again that have changed. `drawn`: what `render_line` has
    returned last for each row; `line`: what it would return now."""
    if not widget.is_on_screen:
        widget.refresh()
        return
    regions = []
    for y in range(widget.size.height):
        new, old = line(y), drawn.get(y)
        if old is None or old.cell_length != new.cell_length:
            regions.append(Region(0, y, max(new.cell_length, 1), 1))
        elif old != new:
            regions += [Region(x, y, end - x, 1) for x, end in _changes(_cells(old), _cells(new))]
    if regions:
        widget.refresh(*regions)


def _cells(strip: Strip) -> list[tuple[str, Style | None]]:
    """Each cell's character and style; "" in the right half of a wide character."""
    cells: list[tuple[str, Style | None]] = []
    for text, style, _ in strip:
        for char in text:
            cells.append((char, style))
            if not char.isascii():
                cells += [("", style)] * (get_character_cell_size(char) - 1)
    return cells


def _changes(old: list[tuple[str, Style | None]], new: list[tuple[str, Style | None]],
             ) -> Iterator[tuple[int, int]]:
    """(begin, end) of each part in which two rows differ."""
    begin = end = None
    for x, (before, now) in enumerate(zip(old, new, strict=False)):
        if before != now:
            if begin is not None and end is not None and x - end > NEAR:
                yield begin, end
                begin = None
            begin, end = x if begin is None else begin, x + 1
    if begin is not None and end is not None:
        yield begin, end


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
