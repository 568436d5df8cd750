"""The fields of a task's own parameters, drawn from what its source says."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from textual import on
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, Static

from gpu_engine.common import values
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import Problem
from gpu_engine.spec.catalog import TaskField, TaskInfo
from gpu_panel.common.choice import Choice
from gpu_panel.common.flow import FlowRow
from gpu_panel.launch.draft import Draft
from gpu_panel.launch.form.problems import problem_text

_COLUMNS, _LABEL = 2, 12
_BESIDE, _WIDEST = 16, 44
"""Cells of a choice that may stand beside another field, and of one that stands at all: what is
wider is typed, and what there is to choose from stands in the help and in the refusal."""
PREFIX = "task.params."


class TaskParams(Vertical):
    """One field a parameter, as many on a line as fit."""

    @dataclass
    class Edited(Message):
        """A parameter was changed by the person."""

        field: TaskField
        text: str

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._fields: tuple[TaskField, ...] = ()
        self._boxes: list[Widget] = []
        """One a field; what is being replaced is in none of these."""
        self._places: list[Static] = []
        """Where the problems of a field go, one a field (fields of a line share it)."""
        self._one_at_a_time = asyncio.Lock()

    async def show(self, info: TaskInfo | None, draft: Draft) -> None:
        """Draw `info`'s parameters with the draft's values."""
        fields = info.fields if info else ()
        async with self._one_at_a_time:
            if fields != self._fields:
                self._fields, self._boxes, self._places = (), [], []
                boxes = [self._widget(i, field) for i, field in enumerate(fields)]
                lines, places = _lines(fields, boxes)
                async with self.batch():
                    await self.remove_children()
                    await self.mount_all(lines)
                self._fields, self._boxes, self._places = fields, boxes, places
            with self.prevent(Input.Changed, Choice.Changed):
                for field, box in zip(self._fields, self._boxes, strict=True):
                    _fill(box, field, draft)

    def _widget(self, i: int, field: TaskField) -> Widget:
        options = _options(field)
        if options:
            return Choice(options, id=f"p-{i}", classes="field")
        box = compact(Input(id=f"p-{i}", classes="field", select_on_focus=True,
                            placeholder="needed" if field.required else _default(field)))
        box.styles.width = _width(field) or "1fr"
        return box

    def show_problems(self, problems: Sequence[Problem]) -> list[Problem]:
        """Each below its parameter; returns those that are about none of these."""
        by_name = {p.key: p for p in problems if p.key.startswith(PREFIX)}
        left = [p for p in problems if p.key not in by_name]
        said: dict[Static, list[str]] = {place: [] for place in self._places}
        for field, box, place in zip(self._fields, self._boxes, self._places, strict=True):
            problem = by_name.pop(PREFIX + field.name, None)
            mark_invalid(box, problem is not None)
            if problem is not None:
                said[place].append(problem_text(problem, field.name))
        for place, lines in said.items():
            place.update(Content("\n".join(lines)))
            place.display = bool(lines)
        return left + list(by_name.values())

    def help_of(self, widget: Widget | None) -> str:
        """What the parameter of a focused field means; "" where it is none of these."""
        name = (widget.id or "") if widget is not None else ""
        if not name.startswith("p-"):
            return ""
        number = int(name[2:])
        if number >= len(self._fields):
            return ""
        field = self._fields[number]
        kind = clean(values.describe(field.kind) if field.kind.without_none.name == "choice"
                     else field.type)
        default = "" if field.required else f", default {_default(field) or '…'}"
        return f"{clean(field.name)} ({kind}{default})" + (f": {clean(field.help)}"
                                                           if field.help else "")

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        self._say(event.input.id, event.value)

    @on(Choice.Changed)
    def _chose(self, event: Choice.Changed) -> None:
        event.stop()
        self._say(event.choice.id, event.value)

    def _say(self, name: str | None, text: str) -> None:
        if name and name.startswith("p-") and int(name[2:]) < len(self._fields):
            self.post_message(self.Edited(self._fields[int(name[2:])], text))


def compact(box: Input) -> Input:
    """What `compact=True` gives an input. Given while it is made, Textual styles each one, and its
    five parts, before it has a place: for a whole form as much work as all of its mounting."""
    box.set_reactive(Input.compact, True)  # pyright: ignore[reportArgumentType]  it says bool
    return box.add_class("-textual-compact", update=False)


def mark_invalid(widget: Widget, wrong: bool) -> None:
    """Paint a field as one whose value does not fit, or no longer."""
    widget.set_class(wrong, "-invalid")


def _lines(fields: Sequence[TaskField],
           boxes: Sequence[Widget]) -> tuple[list[Widget], list[Static]]:
    """The fields on lines of their own or in two columns, and each field's place for problems."""
    narrow = [len(f.name) for f in fields if _width(f)]
    label = min(max(narrow, default=0), _LABEL) + 1
    lines: list[Widget] = []
    places: list[Static] = []
    parts: list[Widget] = []

    def close(count: int) -> None:
        place = Static("", classes="problem")
        lines.extend((FlowRow(Static("", classes="head"), *parts, classes="row"), place))
        places.extend([place] * count)
        parts.clear()

    for field, box in zip(fields, boxes, strict=True):
        alone = not _width(field)
        if parts and (alone or len(parts) == 2 * _COLUMNS):
            close(len(parts) // 2)
        name = Static(Content(clean(field.name)), classes="label")
        if not alone:
            name.styles.width = max(label, len(field.name) + 1)
        parts += [name, box]
        if alone:
            close(1)
    if parts:
        close(len(parts) // 2)
    return lines, places


def _fill(widget: Widget, field: TaskField, draft: Draft) -> None:
    value = draft.value(PREFIX + field.name)
    if isinstance(widget, Choice):
        widget.value = _chosen(field, field.default if value is None else value)
    elif isinstance(widget, Input):
        widget.value = draft.text(PREFIX + field.name)


def _width(field: TaskField) -> int:
    """Cells; 0: all there is."""
    options = _options(field)
    if options:
        width = _cells(options)
        return width if width <= _BESIDE else 0
    kinds = {a.name for a in field.kind.args} if field.kind.name == "union" else {field.kind.name}
    return 8 if kinds <= {"int", "float", "none", "any"} else 0


def _options(field: TaskField) -> tuple[tuple[str, str], ...]:
    """What there is to choose from: (as it is typed, as people see it); empty: it is typed."""
    kind = field.kind.without_none
    if kind.name == "bool":
        found = (("false", "no"), ("true", "yes"))
    elif kind.name == "choice":
        found = tuple((text, clean(text)) for text, _ in kind.choices)
    else:
        return ()
    if field.kind.has("none") and field.default is None and not field.required:
        found = (("", "none"), *found)
    return found if _cells(found) <= _WIDEST else ()


def _cells(options: Sequence[tuple[str, str]]) -> int:
    return sum(len(shown) + 4 for _, shown in options) - 2


def _chosen(field: TaskField, value: object) -> str:
    """Which of the options a value is; "" where it is none of them."""
    try:
        value = values.convert(value, field.kind)
    except ValueError:
        return ""
    texts = [text for text, choice in field.kind.without_none.choices if choice is value]
    return texts[0] if texts else values.show(value)


def _default(field: TaskField) -> str:
    if isinstance(field.default, float):
        return repr(field.default)  # "4.0": that it is no whole number is worth a cell or two
    return "" if field.default is None else clean(values.show(field.default))
