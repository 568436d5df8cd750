"""A list of rows of styled text. It costs a fraction of Textual's DataTable: nothing is laid out,
only what is on the screen is put together, and only rows that have changed are drawn again."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from gpu_panel.common import palette
from gpu_panel.common.painting import entitle, refresh_changed

Part = tuple[str, str]
"""Text and its style: "", "dim", "strong", "good", "warn", "bad", "accent", "track", or "hue 3",
the third of the palette's hues."""
Line = tuple[Part, ...]

STYLES = ("dim", "strong", "good", "warn", "bad", "accent", "track", "cursor", "head")


@dataclass(frozen=True, slots=True)
class Made:
    """A line that is made when it is drawn: of ten thousand rows only a screenful is."""

    make: Callable[[], Line]

    def __iter__(self) -> Iterator[Part]:
        return iter(self.make())


@dataclass(frozen=True, slots=True)
class Row:
    key: str
    """Identifies the entry. Empty for text that the cursor skips."""
    lines: tuple[Line | Made, ...]


class Rows(ScrollView, can_focus=True):
    """Shows the rows that a subclass returns from `build`; call `repaint` when they change."""

    DEFAULT_CSS = """
    Rows {
        overflow-x: hidden;
        scrollbar-size-vertical: 1;
        & > .rows--dim { color: $text-muted; }
        & > .rows--strong { text-style: bold; }
        & > .rows--good { color: $text-success; }
        & > .rows--warn { color: $text-warning; }
        & > .rows--bad { color: $text-error; text-style: bold; }
        & > .rows--accent { color: $text-primary; }
        & > .rows--track { color: $faint; }
        & > .rows--head { color: $text-muted; }
        & > .rows--cursor { background: $cursor-blurred; }
        &:focus > .rows--cursor { background: $cursor; text-style: $cursor-style; }
    }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"rows--{name}" for name in STYLES}
    BINDINGS: ClassVar[list[BindingType]] = [Binding("j", "scroll_down", "down", show=False),
                                             Binding("k", "scroll_up", "up", show=False)]

    cursor: reactive[int] = reactive(0, repaint=False)
    """The number of the row under the cursor, counting only rows with a key."""

    @dataclass
    class Chosen(Message):
        rows: Rows
        key: str

        @property
        def control(self) -> Rows:
            """The widget that Textual's `on` compares with its selector."""
            return self.rows

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.keys: list[str] = []
        """The keys of the rows that the cursor can be on, from top to bottom."""
        self._header: Line | None = None
        self._flat: list[tuple[Line | Made, int]] = []
        """Each line, and the number of its row; -1 if that has no key."""
        self._made: dict[int, Line] = {}
        """Those lines of it that were drawn since they were built or have aged."""
        self._styles: dict[str, Style] = {}
        self._drawn: dict[int, Strip] = {}

    # --- for subclasses ------------------------------------------------------------------------

    def build(self, width: int) -> tuple[Line | None, Sequence[Row]]:
        """The header (None for no header) and the rows, for a width in cells."""
        raise NotImplementedError

    def repaint(self) -> None:
        if self.size.width == 0:
            return
        room = self.scrollable_content_region
        header, rows = self.build(room.width)
        height = sum(len(row.lines) for row in rows) + (header is not None)
        scrolls = height > room.height
        if room.height and scrolls != self.show_vertical_scrollbar:  # it comes or goes with these
            size = self.styles.scrollbar_size_vertical
            header, rows = self.build(room.width - size if scrolls else room.width + size)
        key = self.key_at_cursor
        self._header, self._flat, self._made = header, [], {}
        self.keys = [row.key for row in rows if row.key]
        number = 0
        for row in rows:
            self._flat += [(line, number if row.key else -1) for line in row.lines]
            number += bool(row.key)
        self.cursor = self.keys.index(key) if key in self.keys else self.cursor
        self.virtual_size = Size(self.size.width, len(self._flat) + (header is not None))
        refresh_changed(self, self._drawn, self._strip_at)

    def age(self) -> None:
        """Draw again what is in sight of the same rows: some tell how long ago something was."""
        self._made.clear()
        refresh_changed(self, self._drawn, self._strip_at)

    @property
    def rows_wanted(self) -> int:
        """Rows of the screen with which nothing need be scrolled, frame included."""
        return len(self._flat) + (self._header is not None) + 2

    def entitle(self, title: str, subtitle: str = "") -> None:
        entitle(self, title, subtitle)

    # --- the cursor ----------------------------------------------------------------------------

    @property
    def key_at_cursor(self) -> str | None:
        return self.keys[self.cursor] if 0 <= self.cursor < len(self.keys) else None

    def validate_cursor(self, value: int) -> int:
        return max(0, min(value, len(self.keys) - 1))

    def watch_cursor(self, old: int, new: int) -> None:
        refresh_changed(self, self._drawn, self._strip_at)
        mine = [i for i, (_, owner) in enumerate(self._flat) if owner == new]
        if mine:
            top, room = round(self.scroll_y), self._room
            if mine[0] < top:
                self.scroll_to(y=mine[0], animate=False)
            elif mine[-1] >= top + room:
                self.scroll_to(y=mine[-1] - room + 1, animate=False)

    @property
    def _room(self) -> int:
        return self.scrollable_content_region.height - (self._header is not None)

    def _move(self, by: int, scrolled: int) -> None:
        """Move the cursor; where it can go no further, scroll to the text there."""
        before = self.cursor
        self.cursor += by
        if self.cursor == before:
            self.scroll_to(y=self.scroll_y + scrolled, animate=False)

    def action_scroll_up(self) -> None:
        self._move(-1, -1)

    def action_scroll_down(self) -> None:
        self._move(1, 1)

    def action_cursor_down(self) -> None:
        self._move(1, 1)

    def action_scroll_home(self) -> None:
        self.cursor = 0

    def action_scroll_end(self) -> None:
        self.cursor = len(self.keys) - 1

    def action_page_up(self) -> None:
        self._page(-1)

    def action_page_down(self) -> None:
        self._page(1)

    def _page(self, step: int) -> None:
        """Move by one row less than fits on the screen."""
        room = max(1, self._room - 1)
        each = max(1, round(len(self._flat) / max(len(self.keys), 1)))
        self._move(step * max(1, room // each), step * room)

    def _owner(self, y: int) -> int:
        """The number of the row on line `y` of the content; -1 if there is none."""
        index = round(self.scroll_y) + y - (self._header is not None)
        return self._flat[index][1] if 0 <= index < len(self._flat) else -1

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None:
            return
        if offset.y >= (self._header is not None) and (owner := self._owner(offset.y)) >= 0:
            self.cursor = owner
            self.post_message(self.Chosen(self, self.keys[owner]))

    # --- drawing -------------------------------------------------------------------------------

    def on_resize(self) -> None:
        self.repaint()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._styles.clear()

    def on_focus(self) -> None:
        self._styles.clear()
        self.refresh()

    def on_blur(self) -> None:
        self.on_focus()

    def _style(self, name: str) -> Style:
        if name not in self._styles:
            kind, _, number = name.partition(" ")
            self._styles[name] = palette.strokes(self.app)[int(number) % palette.HUES] \
                if kind == "hue" else self.get_component_rich_style(f"rows--{name}", partial=True)
        return self._styles[name]

    def render_line(self, y: int) -> Strip:
        self._drawn[y] = strip = self._strip_at(y)
        return strip

    def _strip_at(self, y: int) -> Strip:
        width, base = self.scrollable_content_region.width, self.rich_style
        if self._header is not None and y == 0:
            return self._strip(self._header, width, base + self._style("head"), Style())
        index = round(self.scroll_y) + y - (self._header is not None)
        if index >= len(self._flat):
            return Strip.blank(width, base)
        line, owner = self._flat[index]
        if index not in self._made:
            self._made[index] = tuple(line)
        mark = self._style("cursor") if owner == self.cursor and owner >= 0 else Style()
        return self._strip(self._made[index], width, base, mark)

    def _strip(self, line: Line, width: int, base: Style, mark: Style) -> Strip:
        segments, room = list[Segment](), width
        for text, name in line:
            style = base + self._style(name) if name and not mark.reverse else base
            if cells(text) > room:
                segments.append(Segment(fit(text, room), style + mark))
                break
            segments.append(Segment(text, style + mark))
            room -= cells(text)
        return Strip(segments).adjust_cell_length(width, base + mark)


def cells(text: str) -> int:
    """The width of `text` in cells. For ASCII, which is most text, that is its length."""
    return len(text) if text.isascii() else cell_len(text)


def fit(text: str, width: int) -> str:
    """`text` padded or cut to exactly `width` cells; a cut ends with an ellipsis."""
    size = cells(text)
    if size <= width:
        return text + " " * (width - size)
    return set_cell_size(text, max(0, width - 1)) + "…" if width > 0 else ""


def text_row(text: str, style: str = "dim", width: int | None = None) -> Row:
    """A text that the cursor skips, on as many lines as it needs for `width` cells."""
    return Row("", tuple(((part, style),) for part in (wrap(text, width) if width else [text])))


def wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(10, width)) or [""]
