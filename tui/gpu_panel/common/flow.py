"""A row of labelled fields that wraps onto further lines when it is full."""

from __future__ import annotations

from textual._resolve import resolve_box_models
from textual.containers import Container
from textual.css.scalar import Unit
from textual.geometry import NULL_OFFSET, Region, Size, Spacing
from textual.layout import ArrangeResult, Layout, WidgetPlacement
from textual.widget import Widget

_LEAST = 8
"""The least width, in cells, of a field that takes all the room left."""


class FlowLayout(Layout):
    """Places widgets from left to right, line after line. A widget of class `head` sets the left
    margin of every line; one of class `label` stays on the line of the field after it."""

    name = "flow"

    def arrange(self, parent: Widget, children: list[Widget], size: Size,
                greedy: bool = True) -> ArrangeResult:
        parent.pre_layout(self)
        placements: list[WidgetPlacement] = []
        indent = x = y = 0
        line = 1  # height of the current line
        group: list[tuple[Widget, int, int, Spacing]] = []
        for child in children:
            if child.has_class("head"):
                width, height, margin = self._measure(parent, child, size)
                placements.append(_place(child, 0, 0, width, height, margin))
                indent = x = width + margin.right
                continue
            room = Size(max(size.width - indent, 1), size.height)
            group.append((child, *self._measure(parent, child, room)))
            if child.has_class("label"):
                continue
            wide = sum(w + m.right for _, w, _, m in group) - group[-1][3].right
            if x > indent and x + wide > size.width:
                x, y, line = indent, y + line, 1
            for i, (widget, width, height, margin) in enumerate(group):
                if i == len(group) - 1:
                    left = max(size.width - x, 1)
                    rest = widget.styles.width
                    whole = rest is not None and rest.unit == Unit.FRACTION
                    width = left if whole else min(width, left)
                placements.append(_place(widget, x, y, width, height, margin))
                x += width + margin.right
                line = max(line, height)
            group = []
        return placements

    def _measure(self, parent: Widget, child: Widget, size: Size) -> tuple[int, int, Spacing]:
        wanted = child.styles.width
        (width, height, margin), = resolve_box_models(
            [wanted], [child], size, parent.app.viewport_size, Size(0, 0))
        if wanted is not None and wanted.unit == Unit.FRACTION:
            return _LEAST, int(height), margin
        return int(width), int(height), margin


def _place(widget: Widget, x: int, y: int, width: int, height: int,
           margin: Spacing) -> WidgetPlacement:
    return WidgetPlacement(Region(x, y, width, height), NULL_OFFSET, margin, widget)


class FlowRow(Container):
    """Shows its children in a `FlowLayout`, on as many lines as they need."""

    DEFAULT_CSS = "FlowRow { height: auto; width: 1fr; }"

    def __init__(self, *children: Widget, id: str | None = None,
                 classes: str | None = None) -> None:
        super().__init__(*children, id=id, classes=classes)
        self._flow = FlowLayout()

    @property
    def layout(self) -> Layout:
        return self._flow
