"""The fields of a task's own parameters, drawn from what its source says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, Static

from gpu_engine.catalog import TaskField, TaskInfo
from gpu_engine.clean import clean
from gpu_engine.errors import Problem
from gpu_panel.draft import Draft
from gpu_panel.widgets.choice import Choice

_ROOM = 40
"""Cells that a line of parameters may take."""
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
        self._info: TaskInfo | None = None
        self._fields: tuple[TaskField, ...] = ()
        self._rows: list[list[int]] = []

    def compose(self) -> ComposeResult:
        yield from ()

    async def show(self, info: TaskInfo | None, draft: Draft) -> None:
        """Draw `info`'s parameters with the draft's values."""
        fields = info.fields if info else ()
        if fields != self._fields or info is None:
            self._info, self._fields = info, fields
            self._rows = _pack(fields)
            async with self.batch():
                await self.remove_children()
                await self.mount_all(self._widgets())
        with self.prevent(Input.Changed, Choice.Changed):
            for i, field in enumerate(fields):
                self._fill(i, field, draft)

    def _widgets(self) -> list[Widget]:
        out: list[Widget] = []
        for number, row in enumerate(self._rows):
            parts: list[Widget] = [Static("", classes="head")]
            for i in row:
                field = self._fields[i]
                parts.append(Static(Content(clean(field.name)), classes="label"))
                parts.append(self._widget(i, field))
            out.append(Horizontal(*parts, classes="row"))
            out.append(Static("", classes="problem", id=f"params-problem-{number}"))
        return out

    def _widget(self, i: int, field: TaskField) -> Widget:
        if field.type == "bool":
            return Choice((("false", "no"), ("true", "yes")), id=f"p-{i}", classes="field")
        box = Input(id=f"p-{i}", compact=True, classes="field", select_on_focus=True,
                    placeholder="needed" if field.required else _default(field))
        box.styles.width = _width(field) or "1fr"
        return box

    def _fill(self, i: int, field: TaskField, draft: Draft) -> None:
        widget = self.query_one(f"#p-{i}")
        value = draft.value(PREFIX + field.name)
        if isinstance(widget, Choice):
            widget.value = "true" if (field.default if value is None else value) else "false"
        elif isinstance(widget, Input):
            widget.value = draft.text(PREFIX + field.name)

    def show_problems(self, problems: Sequence[Problem]) -> list[Problem]:
        """Each below its parameter; returns those that are about none of these."""
        by_name = {p.key: p for p in problems if p.key.startswith(PREFIX)}
        left = [p for p in problems if p.key not in by_name]
        for number, row in enumerate(self._rows):
            shown = []
            for i in row:
                name = PREFIX + self._fields[i].name
                problem = by_name.pop(name, None)
                bad(self.query_one(f"#p-{i}"), problem is not None)
                if problem is not None:
                    shown.append(problem_text(problem, self._fields[i].name))
            place = self.query_one(f"#params-problem-{number}", Static)
            place.update(Content("\n".join(shown)))
            place.display = bool(shown)
        return left + list(by_name.values())

    def help_of(self, widget: Widget | None) -> str:
        """What the parameter of a focused field means; "" where it is none of these."""
        name = (widget.id or "") if widget is not None else ""
        if not name.startswith("p-"):
            return ""
        field = self._fields[int(name[2:])]
        kind = clean(field.type)
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
        if name and name.startswith("p-"):
            self.post_message(self.Edited(self._fields[int(name[2:])], text))


def bad(widget: Widget, wrong: bool) -> None:
    widget.set_class(wrong, "-invalid")


def problem_text(problem: Problem, label: str) -> str:
    """"✗ port: the port is taken …"."""
    said = clean(problem.message)
    return f"✗ {clean(label)}: {said}" if label else f"✗ {said}"


def _pack(fields: Sequence[TaskField]) -> list[list[int]]:
    """Which fields share a line."""
    rows: list[list[int]] = []
    room = 0
    for i, field in enumerate(fields):
        needs = len(field.name) + 3 + (_width(field) or _ROOM)
        if not rows or needs > room:
            rows.append([])
            room = _ROOM
        rows[-1].append(i)
        room -= needs
    return rows


def _width(field: TaskField) -> int:
    """Cells; 0: all there is."""
    if field.type == "bool":
        return 12
    return 0 if "str" in field.type or "Path" in field.type else 8


def _default(field: TaskField) -> str:
    return "" if field.default is None else clean(str(field.default))
