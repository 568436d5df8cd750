"""The fields for a task's own parameters, made from the task's source."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from textual import on
from textual.containers import Vertical
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input

from gpu_engine.common import values
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import Problem
from gpu_engine.spec.catalog import TaskField, TaskInfo
from gpu_panel.common.choice import Choice
from gpu_panel.common.flow import FlowRow, Labelled
from gpu_panel.launch.draft import Draft
from gpu_panel.launch.form.fields import problem_text

_COLUMNS, _LABEL = 2, 12
_BESIDE, _WIDEST = 16, 44
"""Widths in cells. A choice up to the first may share its line with another field. One wider than
the second shows only the chosen option, and the others in its menu."""
PREFIX = "task.params."


class TaskParams(Vertical):
    """A field for each parameter, several on a line if they fit."""

    class Edited(Message):
        """The person has changed a parameter in the draft."""

    def __init__(self, draft: Draft, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._fields: dict[Widget, TaskField] = {}
        """What each widget is for. Empty while fields are being replaced."""
        self._rows: list[FlowRow] = []
        self.draft = draft
        """What is typed goes there."""
        self._one_at_a_time = asyncio.Lock()

    async def show(self, info: TaskInfo | None) -> None:
        fields = info.fields if info else ()
        async with self._one_at_a_time:
            if fields != tuple(self._fields.values()):
                self._fields, self._rows = {}, []
                boxes = {self._widget(i, field): field for i, field in enumerate(fields)}
                rows = _rows(boxes)
                async with self.batch():
                    await self.remove_children()
                    await self.mount_all(dict.fromkeys(rows))
                self._fields, self._rows = boxes, rows
            with self.prevent(Input.Changed, Choice.Changed):
                for box, field in self._fields.items():
                    key = PREFIX + field.name
                    if isinstance(box, Choice):
                        value = self.draft.value(key)
                        box.value = _chosen(field, field.default if value is None else value)
                    elif isinstance(box, Input):
                        box.value = self.draft.text(key)

    def _widget(self, i: int, field: TaskField) -> Widget:
        options = _options(field)
        if options:
            wide = _cells(options) > _WIDEST
            choice = Choice(options, id=f"p-{i}", classes="field", closed=wide)
            if wide:
                choice.styles.width = "1fr"
            return choice
        box = Input(id=f"p-{i}", classes="field", compact=True,
                    placeholder="needed" if field.required else _default(field))
        box.styles.width = _width(field) or "1fr"
        return box

    def show_problems(self, problems: Sequence[Problem]) -> list[Problem]:
        """Show each problem below its parameter. Returns those that are about no parameter."""
        by_name = {p.key: p for p in problems if p.key.startswith(PREFIX)}
        left = [p for p in problems if p.key not in by_name]
        texts: dict[FlowRow, list[str]] = {row: [] for row in self._rows}
        for (box, field), row in zip(self._fields.items(), self._rows, strict=True):
            problem = by_name.pop(PREFIX + field.name, None)
            mark_invalid(box, problem is not None)
            if problem is not None:
                texts[row].append(problem_text(problem, field.name))
        for row, lines in texts.items():
            row.show(lines)
        return left + list(by_name.values())

    def help_of(self, widget: Widget | None) -> str:
        """The help of a parameter's field; empty if `widget` is not one."""
        if widget is None or (field := self._fields.get(widget)) is None:
            return ""
        kind = clean(values.describe(field.kind) if field.kind.without_none.name == "choice"
                     else field.type)
        default = "" if field.required else f", default {_default(field) or '…'}"
        return f"{clean(field.name)} ({kind}{default})" + (f": {clean(field.help)}"
                                                           if field.help else "")

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        self._report(event.input, event.value)

    @on(Choice.Changed)
    def _chose(self, event: Choice.Changed) -> None:
        event.stop()
        self._report(event.choice, event.value)

    def _report(self, box: Widget, text: str) -> None:
        if (field := self._fields.get(box)) is not None:
            self.draft.put_param(field, text)
            self.post_message(self.Edited())


def mark_invalid(widget: Widget, wrong: bool) -> None:
    widget.set_class(wrong, "-invalid")


def _rows(boxes: Mapping[Widget, TaskField]) -> list[FlowRow]:
    """For each field its row, which has one or two of them."""
    narrow = [len(f.name) for f in boxes.values() if _width(f)]
    label = min(max(narrow, default=0), _LABEL) + 1
    rows: list[FlowRow] = []
    parts: list[Labelled] = []

    def close() -> None:
        if parts:
            rows.extend([FlowRow("", parts)] * len(parts))
            parts.clear()

    for box, field in boxes.items():
        alone = not _width(field)
        if alone or len(parts) == _COLUMNS:
            close()
        parts.append(Labelled(box, clean(field.name),
                              0 if alone else max(label, len(field.name) + 1)))
        if alone:
            close()
    close()
    return rows


def _width(field: TaskField) -> int:
    """The width of a field in cells; 0: all the room left."""
    options = _options(field)
    if options:
        width = _cells(options)
        return width if width <= _BESIDE else 0
    kinds = {a.name for a in field.kind.args} if field.kind.name == "union" else {field.kind.name}
    return 8 if kinds <= {"int", "float", "none", "any"} else 0


def _options(field: TaskField) -> tuple[tuple[str, str], ...]:
    """The options of a field: (value, text on the screen); empty for a text field."""
    kind = field.kind.without_none
    if kind.name == "bool":
        found = (("false", "no"), ("true", "yes"))
    elif kind.name == "choice":
        found = tuple((text, clean(text)) for text, _ in kind.choices)
    else:
        return ()
    if field.kind.has("none") and field.default is None and not field.required:
        found = (("", "none"), *found)
    return found


def _cells(options: Sequence[tuple[str, str]]) -> int:
    return sum(len(shown) + 4 for _, shown in options) - 2


def _chosen(field: TaskField, value: object) -> str:
    """The option that a value stands for; empty if it is none of them."""
    try:
        value = values.convert(value, field.kind)
    except ValueError:
        return ""
    texts = [text for text, choice in field.kind.without_none.choices if choice is value]
    return texts[0] if texts else values.show(value)


def _default(field: TaskField) -> str:
    if isinstance(field.default, float):
        return repr(field.default)  # "4.0" shows that it need not be a whole number
    return "" if field.default is None else clean(values.show(field.default))
