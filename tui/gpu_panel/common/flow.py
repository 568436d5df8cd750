"""A row of labelled fields that wraps onto further lines when it is full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.cells import cell_len
from textual.containers import Container
from textual.content import Content
from textual.css.scalar import Unit
from textual.geometry import NULL_OFFSET, Region, Size, Spacing
from textual.layout import ArrangeResult, Layout, WidgetPlacement
from textual.widget import Widget
from textual.widgets import Static

from gpu_panel.common.painting import put_lines

HEAD = 7
"""Cells on the left of every line; the heading is on the first."""
_LEAST = 8
"""The least width, in cells, of a field that takes all the room left."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """A field of a row with what stands before it."""

    widget: Widget
    label: str = ""
    room: int = 0
    """The least cells for the label."""

    @property
    def before(self) -> int:
        return max(cell_len(self.label), self.room) + 1 if self.label else 0


class _Text(NamedTuple):
    x: int
    y: int
    text: str
    style: str = "$text-muted"


class FlowLayout(Layout):
    """Places the fields of a `FlowRow` from left to right, line after line, each with its label."""

    name = "flow"

    def arrange(self, parent: Widget, children: list[Widget], size: Size,
                greedy: bool = True) -> ArrangeResult:
        assert isinstance(parent, FlowRow)
        parent.pre_layout(self)
        before = {field.widget: field.before for field in parent.fields}
        placements: list[WidgetPlacement] = []
        x, y = HEAD, 0
        line = 1  # height of the current line
        room = Size(max(size.width - HEAD, 1), size.height)
        for child in children:
            width, height, margin = self._measure(parent, child, room)
            if x > HEAD and x + before[child] + width > size.width:
                x, y, line = HEAD, y + line, 1
            x += before[child]
            left = max(size.width - x, 1)
            rest = child.styles.width
            whole = rest is not None and rest.unit == Unit.FRACTION
            width = left if whole else min(width, left)
            placements.append(WidgetPlacement(Region(x, y, width, height), NULL_OFFSET, margin,
                                              child))
            x += width + margin.right
            line = max(line, height)
        return placements

    def _measure(self, parent: Widget, child: Widget, size: Size) -> tuple[int, int, Spacing]:
        view, frame, wanted = parent.app.viewport_size, child.gutter, child.styles.width
        if wanted is None or wanted.unit == Unit.AUTO:
            width = child.get_content_width(size, view) + frame.width
        else:
            width = _LEAST if wanted.unit == Unit.FRACTION else int(wanted.value)
        if (tall := child.styles.height) is not None and tall.unit == Unit.CELLS:
            height = int(tall.value)
        else:
            height = child.get_content_height(size, view, width - frame.width) + frame.height
        return width, height, child.styles.margin


class FlowRow(Container):
    """Shows fields in a `FlowLayout`, on as many lines as they need. It draws heading and labels
    itself: a widget for each takes as long to mount and style as a field. The label of a field with
    the class `-untold` is struck out, and the heading if all fields have it. Below it stands what
    is wrong with its fields; the widget for that is made with the first problem, as most rows never
    have any."""

    DEFAULT_CSS = "FlowRow { height: auto; width: 1fr; }"

    def __init__(self, head: str, fields: Sequence[Labelled], *, id: str | None = None) -> None:
        super().__init__(*(field.widget for field in fields), id=id, classes="row")
        self.head = head
        self.fields = tuple(fields)
        self._flow = FlowLayout()
        self._drawn: tuple[_Text, ...] = ()
        self._letters: Mapping[Widget, str] = {}
        self.above_problems: Widget = self
        """The widget below which problems stand."""
        self._problems: Static | None = None

    @property
    def layout(self) -> Layout:
        return self._flow

    def render(self) -> Content:
        self._drawn = self._labels(self.arrange(self.size).placements)
        lines = [Content() for _ in range(self.size.height)]
        for x, y, text, style in self._drawn:
            if y < len(lines):
                gap = Content(" " * (x - lines[y].cell_length))
                lines[y] = Content.assemble(lines[y], gap, Content.styled(text, style))
        return Content("\n").join(lines)

    def show(self, problems: Sequence[str]) -> None:
        if self._problems is None:
            if not problems or not isinstance(self.parent, Widget):
                return
            self._problems = Static("", classes="problem")
            self.parent.mount(self._problems, after=self.above_problems)
        put_lines(self._problems, problems)

    def show_letters(self, letters: Mapping[Widget, str]) -> None:
        """Show a letter in the label of each of these fields that is one of ours, or before it;
        none: take them away."""
        self._letters = letters
        self.adapt_labels()

    def adapt_labels(self) -> None:
        """Draw the labels again if fields have got or lost the class `-untold`."""
        if self.size and self._drawn != self._labels(self.arrange(self.size).placements):
            self.refresh()

    def _labels(self, placements: Sequence[WidgetPlacement]) -> tuple[_Text, ...]:
        places = {placement.widget: placement.region for placement in placements}
        untold = [field.widget.has_class("-untold") for field in self.fields
                  if field.widget in places]
        found = [_Text(0, 0, self.head, "$text-muted strike" if untold and all(untold)
                       else "$text-muted")]
        for field in self.fields:
            if (place := places.get(field.widget)) is None:
                continue
            x, y, label = place.x - field.before, place.y, field.label
            style = "$text-muted strike" if field.widget.has_class("-untold") else "$text-muted"
            letter = self._letters.get(field.widget, "")
            at = label.lower().find(letter) if letter else -1
            if at > 0:
                found.append(_Text(x, y, label[:at], style))
            if letter:  # within the label, or else before it
                x += cell_len(label[:at]) if at >= 0 else -1
                found.append(_Text(x, y, letter, "bold reverse $text-accent"))
                x += 1
            if label[at + 1:]:
                found.append(_Text(x, y, label[at + 1:], style))
        return tuple(found)
