"""The form's fields as widgets: they show a draft and its problems, and what is typed goes into
it."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from textual import on
from textual.app import ComposeResult
from textual.events import Paste
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Collapsible, Input, Static
from textual.widgets.input import Selection

from gpu_engine.common.clean import clean
from gpu_engine.common.errors import Problem
from gpu_engine.plan import own_command
from gpu_engine.plan.records import Interpreter
from gpu_engine.spec import modes
from gpu_engine.spec.catalog import TaskInfo
from gpu_engine.spec.typed_command import one_line
from gpu_engine.sweep.grid import varied
from gpu_panel.common.choice import Choice
from gpu_panel.common.errors import guarded
from gpu_panel.common.flow import FlowRow, Labelled
from gpu_panel.common.in_view import FocusInView
from gpu_panel.common.painting import put_lines
from gpu_panel.launch.draft import Draft
from gpu_panel.launch.form.fields import (
    FIELDS,
    LENGTH,
    MORE_ROWS,
    OWN_CLASS,
    OWN_COMMAND,
    ROWS,
    TASK,
    TASK_ROWS,
    UNIT,
    Field,
    FormRow,
    field_of,
    label_of,
    letters,
    problem_text,
    widget_id,
)
from gpu_panel.launch.form.interpreter import InterpreterLine
from gpu_panel.launch.form.task_params import TaskParams, mark_invalid


class More(Collapsible):
    """What is needed now and then, drawn when it is opened first: these are more widgets than the
    rest of the screen has. Opened by the person it comes into view, opened for a problem the field
    with the problem does, unless the person is in a field: that one stays in view."""

    def __init__(self, make: Callable[[], Iterable[Widget]], fill: Callable[[], None]) -> None:
        """`make` makes its widgets; `fill`, called once they are there, fills them."""
        # The class is set here too: setting it after mounting would style all fields again.
        super().__init__(title="more", id="more", collapsed=True, classes="-collapsed")
        self._make = make
        self._fill = fill
        self._field: Widget | None = None
        self._drawing = asyncio.Lock()
        self.drawn = False

    async def draw(self) -> None:
        """Draw and fill its widgets, if they are not there yet."""
        async with self._drawing:
            if self.drawn:
                return
            with self.app.batch_update():  # so that no half of it is painted
                await self.query_one(self.Contents).mount_all(self._make())
                self.drawn = True
                self._fill()

    async def on_collapsible_title_toggle(self) -> None:
        """Called before Textual opens or closes it. Keys that are typed ahead wait for this."""
        await self.draw()

    def open_at(self, field: Widget) -> None:
        """Open it for a problem with `field`, once it is drawn; nothing where it is open."""
        if self.collapsed:
            self._field = field
            self.collapsed = False

    def scroll_visible(self, *args: object, **options: object) -> None:
        """Called by Textual once it is open."""
        field, self._field = self._field, None
        if field is None:
            super().scroll_visible(*args, **options)  # pyright: ignore[reportArgumentType]
        elif not (isinstance(self.parent, Widget) and self.parent.has_focus_within):
            field.scroll_visible(animate=False)


class CommandInput(Input):
    """An Input that takes all lines of what is pasted, where others take the first."""

    def on_paste(self, event: Paste) -> None:
        """Put the lines where the cursor is, or in the place of what is selected."""
        event.prevent_default()
        event.stop()
        self.replace(one_line(event.text), *sorted(self.selection))

    def select_varied(self) -> None:
        """Select the value that is mostly varied, to be replaced; without one, go to the end."""
        name = varied(self.value.split())
        if name is None:
            self.selection = Selection.cursor(len(self.value))
        else:
            *_, last = re.finditer(rf"(?:^|\s)-*{re.escape(name)}(?:=|\s+)(\S+)", self.value)
            self.selection = Selection(*last.span(1))


_FIRST_ROWS = (*TASK_ROWS, *ROWS)
_PYTHON = "run.python"
_BELOW_MORE = frozenset(f.key for row in MORE_ROWS for f in row.fields)


class Fieldset(FocusInView):
    """All fields of the form. They put the typed text into the draft; the engine decides what it
    means."""

    @dataclass
    class Edited(Message):
        task: bool = False
        """Whether the task is another one, whose parameters have to be drawn."""

    def __init__(self, tasks: Sequence[TaskInfo], draft: Draft) -> None:
        """`tasks`: those that ship with gpu-panel."""
        super().__init__(id="fields", can_focus=False)
        self._tasks = tuple(tasks)
        self._kind = self._tasks[0].use if self._tasks else OWN_CLASS
        self._more = More(self._make_more, self._fill_more)
        self._line = InterpreterLine()
        self._taken: Interpreter | None = None
        self.draft = draft
        self._problems: Sequence[Problem] = ()

    # --- building ------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        options = [(t.use, f"{t.name} · {_first(t.doc)}" if t.doc else t.name)
                   for t in self._tasks]
        options += [(OWN_CLASS, "own task class …"), (OWN_COMMAND, "own command …")]
        yield FlowRow("Task", [Labelled(Choice(options, closed=True, id="task-choice"))])
        for row in TASK_ROWS:
            yield self._row(row)
        yield TaskParams(self.draft, id="params")
        for row in ROWS:
            yield self._row(row)
        yield self._more
        yield Static("", id="other-problems", classes="problem")

    def _make_more(self) -> list[Widget]:
        made: list[Widget] = []
        for row in MORE_ROWS:
            made.append(fields := self._row(row))
            if row.fields[0].key == _PYTHON:
                fields.above_problems = FlowRow("", [Labelled(self._line)],
                                                id="row-interpreter")
                made.append(fields.above_problems)
        return made

    def _row(self, row: FormRow) -> FlowRow:
        return FlowRow(row.label, [Labelled(self._widget(f), f.label) for f in row.fields],
                        id=_row_id(row))

    def _widget(self, field: Field) -> Choice | Input:
        name = widget_id(field.key)
        if field.options:
            # Three names of signals are wider than their place.
            return Choice(field.options, id=name, classes="field", notes=field.notes,
                          closed=field.key == "run.stop_signal")
        kind = CommandInput if field.key == "task.command" else Input
        box = kind(id=name, classes="field", compact=True)
        box.styles.width = field.width + 1 if field.width else "1fr"
        return box

    # --- showing a draft -----------------------------------------------------------------------

    def edit(self, draft: Draft) -> None:
        """From now on what is typed goes into this one."""
        self.draft = self.query_one(TaskParams).draft = draft

    def fill(self) -> None:
        """Show the draft's values, without reporting that anything was typed."""
        draft = self.draft
        with self.prevent(Input.Changed, Choice.Changed):
            self._fill_rows(self._rows)
            unit = "steps" if draft.value("train.steps") is not None else "epochs"
            self._choice(UNIT).value = unit
            self._input(LENGTH).value = draft.text(f"train.{unit}")
            use, command = draft.value("task.use"), draft.value("task.command")
            known = [t.use for t in self._tasks]
            self._kind = OWN_COMMAND if command is not None else \
                (use if isinstance(use, str) and use in known else OWN_CLASS)
            self.task_choice.value = self._kind
        self.adapt()

    def _fill_rows(self, rows: Iterable[FormRow]) -> None:
        draft = self.draft
        for field in _fields(rows):
            key = field.key
            if key in (LENGTH, UNIT):
                continue
            if field.options:
                self._choice(key).value = draft.text(key)
            else:
                said = field.shown(draft.text(key)) if draft.says(key) else ""
                box = self._input(key)
                if field.meant(box.value) != field.meant(said):  # "0" stays as it was typed
                    box.value = said

    def _fill_more(self) -> None:
        with self.prevent(Input.Changed, Choice.Changed):
            self._fill_rows(MORE_ROWS)
        self.adapt()
        self.show_problems(self._problems)
        self.show_interpreter(self._taken)

    def show_interpreter(self, taken: Interpreter | None) -> None:
        """Show what the ranks of a task would run in; None: that is not known."""
        self._taken = taken
        if self._more.drawn:
            box = self._input(_PYTHON)
            self._line.show(taken, box.value)
            box.placeholder = self._placeholder(FIELDS[_PYTHON], "")

    @property
    def _rows(self) -> tuple[FormRow, ...]:
        return (*_FIRST_ROWS, *MORE_ROWS) if self._more.drawn else _FIRST_ROWS

    def adapt(self) -> None:
        """Show only the fields that the chosen mode and task use, with defaults in empty ones."""
        mode = self.draft.mode
        with self.prevent(Choice.Changed):
            self._choice("parallel.mode").value = mode
        for row in self._rows:
            shown = False
            for field in row.fields:
                here = self._has(field, mode)
                shown |= here
                box = self.query_one("#" + widget_id(field.key))
                box.display = here
                box.set_class(not self._is_used(field.key), "-untold")
            line = self.query_one("#" + _row_id(row), FlowRow)
            line.display = shown
            line.adapt_labels()
            if row.fields[0].key == _PYTHON:
                self.query_one("#row-interpreter").display = shown
        for field in _fields(self._rows):
            if not field.options and field.key != LENGTH:
                self._input(field.key).placeholder = self._placeholder(field, mode)
        steps = self._choice(UNIT).value == "steps"
        self._input(LENGTH).placeholder = "" if steps else "1"

    def _placeholder(self, field: Field, mode: str) -> str:
        """What stands in a text field that is empty."""
        if field.key == _PYTHON and self._taken is not None:
            return clean(self._taken.path)
        return field.placeholder or field.shown(_default(field.key, mode))

    def _is_used(self, key: str) -> bool:
        """Whether the field has an effect: an own command needs a placeholder for it."""
        if self._kind != OWN_COMMAND:
            return True
        if key in (LENGTH, UNIT):
            key = f"train.{self._choice(UNIT).value}"
        command = self.draft.value("task.command")
        return own_command.is_told(command if isinstance(command, list) else None, key)

    def _has(self, field: Field, mode: str) -> bool:
        draft = self.draft
        if field.key == "task.use":
            return self._kind == OWN_CLASS
        if field.key == "task.command":
            return self._kind == OWN_COMMAND
        if self._kind == OWN_COMMAND and field.key in own_command.NEVER_TOLD:
            return draft.insists(field.key)
        if field.key == "train.lr_reference_batch":
            return draft.value("train.lr_scale") != "none" or draft.says(field.key)
        if draft.hosts and field.key in ("parallel.nodes", "parallel.node_rank"):
            return False  # they follow from the hosts
        chosen = modes.find(mode)
        return chosen is None or chosen.applies(field.key)

    async def show_task(self, task: TaskInfo | None) -> None:
        await self.query_one(TaskParams).show(task)

    # --- problems ------------------------------------------------------------------------------

    def show_problems(self, problems: Sequence[Problem]) -> None:
        """Show each problem below its field, and those without a field at the end. Problems about
        devices are left to the devices pane."""
        self._problems = problems
        below_more = next((p.key for p in problems if p.key in _BELOW_MORE), None)
        if below_more is not None and not self._more.drawn:
            self._draw_more()
            return
        by_field: dict[str, list[Problem]] = defaultdict(list)
        for problem in problems:
            if not problem.key.startswith("devices."):
                by_field[field_of(problem.key)].append(problem)
        for row in self._rows:
            texts: list[str] = []
            for field in row.fields:
                widget = self.query_one("#" + widget_id(field.key))
                mine = by_field.get(field.key, []) if widget.display else []
                mark_invalid(widget, bool(mine))
                texts += [problem_text(p, label_of(p, field, row)) for p in mine]
                if mine:
                    del by_field[field.key]
            self.query_one("#" + _row_id(row), FlowRow).show(texts)
        left = self.query_one(TaskParams).show_problems(
            [p for problems in by_field.values() for p in problems])
        where = {"task.use": "task", "": ""}
        put_lines(self.query_one("#other-problems", Static),
                    [problem_text(p, where.get(p.key, p.key)) for p in left])
        if below_more is not None:
            self._more.open_at(self.query_one("#" + widget_id(below_more)))

    @guarded("form")
    async def _draw_more(self) -> None:
        """Draw the fields below "more", which then show their problems."""
        await self._more.draw()

    async def focus_problem(self, problems: Sequence[Problem]) -> None:
        if any(p.key in _BELOW_MORE for p in problems):
            await self._more.draw()
        for problem in problems:
            for widget in self.query("#" + widget_id(field_of(problem.key))):
                if widget.display:
                    widget.focus()
                    return

    # --- what is typed -------------------------------------------------------------------------

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        self._report(_key_of(event.input.id), event.value)

    @on(Choice.Changed)
    def _chose(self, event: Choice.Changed) -> None:
        event.stop()
        if event.choice is self.task_choice:
            self._pick_task(event.value)
        else:
            self._report(_key_of(event.choice.id), event.value)

    @on(InterpreterLine.Chosen)
    def _chose_interpreter(self, event: InterpreterLine.Chosen) -> None:
        event.stop()
        self._input(_PYTHON).value = event.python  # which reports it as typed

    def _report(self, key: str | None, text: str) -> None:
        if key in (LENGTH, UNIT):
            key, text = f"train.{self._choice(UNIT).value}", self._input(LENGTH).value
        if key is not None:
            self.draft.put(key, FIELDS[key].meant(text) if key in FIELDS else text)
            if key in ("parallel.mode", "train.lr_scale"):
                self.fill()
            self.post_message(self.Edited(task=key == "task.use"))

    def _pick_task(self, kind: str) -> None:
        if kind == OWN_COMMAND:
            self.draft.put("task.command", "")
        else:
            self.draft.use_task("" if kind == OWN_CLASS else kind)
        self.fill()
        self.post_message(self.Edited(task=True))

    def help_of(self, focused: Widget | None) -> str:
        """The help of the focused field; empty if `focused` is none of the fields."""
        if focused is None:
            return ""
        if focused is self.task_choice:
            return "What is trained: a task that ships with gpu-panel, a class of your own, or " \
                "your own script"
        if focused is self._line:
            return self._line.ABOUT
        field = FIELDS.get(_key_of(focused.id) or "")
        if field is None:
            return self.query_one(TaskParams).help_of(focused)
        remark = _remark_on_unused(field.key, self._choice(UNIT).value) + " " \
            if focused.has_class("-untold") else ""
        return remark + field.help

    @property
    def rows_wanted(self) -> int:
        return sum(part.outer_size.height for part in self.children if part.display)

    def letters(self) -> dict[Widget, str]:
        """A letter for each field that is shown, to go there."""
        found = [(field.widget, field.label or row.head) for row in self.query(FlowRow)
                 if all(node.display for node in row.ancestors_with_self
                        if isinstance(node, Widget) and self in node.ancestors_with_self)
                 for field in row.fields if field.widget.display]
        keys = [TASK if w is self.task_choice else _key_of(w.id) or "" for w, _ in found]
        return dict(zip((w for w, _ in found),
                        letters(zip(keys, (label for _, label in found), strict=True)),
                        strict=True))

    def show_letters(self, shown: Mapping[Widget, str]) -> None:
        for row in self.query(FlowRow):
            row.show_letters(shown)

    def focus_varied(self, last: Widget | None) -> None:
        """Go to what is mostly changed before a run is made again, ready to be replaced: the
        learning rate, or that option of the command; or to another field if that had the focus
        `last`."""
        box = self._input("task.command" if self._kind == OWN_COMMAND else "train.lr")
        (last if last is not None and last.display else box).focus()
        if isinstance(box, CommandInput) and last in (None, box):
            box.call_after_refresh(box.select_varied)  # the focus selects all of it

    # --- the widgets ---------------------------------------------------------------------------

    @property
    def task_choice(self) -> Choice:
        return self.query_one("#task-choice", Choice)

    def _input(self, key: str) -> Input:
        return self.query_one("#" + widget_id(key), Input)

    def _choice(self, key: str) -> Choice:
        return self.query_one("#" + widget_id(key), Choice)


def _default(key: str, mode: str) -> str:
    if key == "parallel.master_port":
        chosen = modes.find(mode)
        return str(chosen.port) if chosen and chosen.port else "any"
    return Draft().text(key)


def _remark_on_unused(key: str, unit: str) -> str:
    """How to make a person's own command use a field."""
    name = own_command.TOLD_BY[f"train.{unit}" if key in (LENGTH, UNIT) else key][0]
    return f"Your command does not use this: write {{{name}}} where the value should go."


def _row_id(row: FormRow) -> str:
    return "row-" + row.fields[0].key.replace(".", "-")


def _fields(rows: Iterable[FormRow]) -> Iterable[Field]:
    return (field for row in rows for field in row.fields)


_KEYS = {widget_id(key): key for key in FIELDS}


def _key_of(name: str | None) -> str | None:
    return _KEYS.get(name or "")


def _first(doc: str) -> str:
    sentence = " ".join(doc.split()).partition(". ")[0].rstrip(".")
    return clean(sentence, 56)
