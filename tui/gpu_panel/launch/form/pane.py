"""The launch form: fields over a draft, problems beside the fields they are about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Button, Collapsible, Input, Select, Static

from gpu_engine.common.clean import clean
from gpu_engine.common.errors import Problem
from gpu_engine.plan import modes
from gpu_engine.plan import own_command as cmd
from gpu_engine.spec.catalog import TaskInfo
from gpu_panel import keys
from gpu_panel.common.choice import Choice
from gpu_panel.common.flow import FlowRow
from gpu_panel.launch.draft import Draft
from gpu_panel.launch.form.fields import (
    FIELDS,
    LENGTH,
    MORE_ROWS,
    OWN_CLASS,
    OWN_COMMAND,
    ROWS,
    TASK_ROWS,
    UNIT,
    Field,
    FormRow,
    field_of,
    widget_id,
)
from gpu_panel.launch.form.task_params import TaskParams, bad, compact, problem_text

_HEAD = 7


class LaunchForm(Vertical):
    """Shows a draft and says what was typed; what a value means is the engine's to say."""

    HELP = """Type what to train and how. An empty field takes the default that stands in it.
What does not fit is said below its field, and Launch waits until all of it fits. Arrow keys go
from field to field; left and right choose between the dots."""
    BINDINGS: ClassVar[list[BindingType]] = keys.bindings(keys.of("form"))

    @dataclass
    class Edited(Message):
        """A field of the spec was changed by the person."""

        key: str
        text: str

    @dataclass
    class TaskChosen(Message):
        """A task of the list ("" for an own one), or an own command."""

        use: str
        command: bool = False

    def __init__(self, tasks: Sequence[TaskInfo], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._tasks = tuple(tasks)
        self.border_title = "Launch"
        self._kind = self._tasks[0].use if self._tasks else OWN_CLASS

    # --- building ------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        options = [(f"{t.name} · {_first(t.doc)}" if t.doc else t.name, t.use)
                   for t in self._tasks]
        options += [("own task class …", OWN_CLASS), ("own command …", OWN_COMMAND)]
        with VerticalScroll(id="fields", can_focus=False):
            with Horizontal(classes="row"):
                yield Static("Task", classes="head")
                yield Select(options, allow_blank=False, compact=True, id="task-choice")
            for row in TASK_ROWS:
                yield from self._row(row)
            yield TaskParams(id="params")
            for row in ROWS:
                yield from self._row(row)
            # The class as well: given after mounting, it has every field in there styled again.
            with Collapsible(title="more", id="more", collapsed=True, classes="-collapsed"):
                for row in MORE_ROWS:
                    yield from self._row(row)
            yield Static("", id="other-problems", classes="problem")
        yield Static("", id="field-help")
        yield Static("", id="verdict")
        yield Button("Launch", id="launch", compact=True, disabled=True, action="screen.launch")

    def _row(self, row: FormRow) -> ComposeResult:
        with FlowRow(classes="row", id=_row_id(row)):
            yield Static(row.label, classes="head")
            for field in row.fields:
                if field.label:
                    yield Static(field.label, classes="label", id=widget_id(field.key) + "-label")
                yield self._widget(field)
        yield Static("", classes="problem", id=_row_id(row) + "-problem")

    def _widget(self, field: Field) -> Choice | Input:
        name = widget_id(field.key)
        if field.options:
            return Choice(field.options, id=name, classes="field")
        box = compact(Input(id=name, classes="field", select_on_focus=True))
        box.styles.width = field.width + 1 if field.width else "1fr"
        return box

    # --- showing a draft -----------------------------------------------------------------------

    def fill(self, draft: Draft) -> None:
        """Show what the draft says, without saying that anything was typed."""
        with self.prevent(Input.Changed, Choice.Changed, Select.Changed):
            for key, field in FIELDS.items():
                if key in (LENGTH, UNIT):
                    continue
                self._put(field, draft)
            unit = "steps" if draft.value("train.steps") is not None else "epochs"
            self._choice(UNIT).value = unit
            self._input(LENGTH).value = draft.text(f"train.{unit}")
            use, command = draft.value("task.use"), draft.value("task.command")
            known = [t.use for t in self._tasks]
            self._kind = OWN_COMMAND if command is not None else \
                (use if use in known else OWN_CLASS)
            self.query_one("#task-choice", Select).value = self._kind
        self.adapt(draft)

    def _put(self, field: Field, draft: Draft) -> None:
        if field.options:
            self._choice(field.key).value = draft.text(field.key)
            return
        said = draft.says(field.key)
        self._input(field.key).value = draft.text(field.key) if said else ""

    def adapt(self, draft: Draft) -> None:
        """Show the fields that the chosen mode and task have, and the defaults in empty ones."""
        mode = str(draft.value("parallel.mode"))
        for row in (*TASK_ROWS, *ROWS, *MORE_ROWS):
            shown = False
            for field in row.fields:
                here = self._has(field, mode, draft)
                shown |= here
                self._adapt_field(field, here, draft)
            self.query_one("#" + _row_id(row)).display = shown
        for key, field in FIELDS.items():
            if not field.options and key != LENGTH:
                self._input(key).placeholder = field.placeholder or _default(key, mode)
        steps = self._choice(UNIT).value == "steps"
        self._input(LENGTH).placeholder = "" if steps else "1"
        self.border_title = Content(f"Launch ─ {clean(draft.title)}")

    def _adapt_field(self, field: Field, here: bool, draft: Draft) -> None:
        box = self.query_one("#" + widget_id(field.key))
        box.display = here
        box.set_class(not self._told(field.key, draft), "-untold")
        if field.label:
            label = self.query_one(f"#{widget_id(field.key)}-label")
            label.display = here
            label.set_class(box.has_class("-untold"), "-untold")

    def _told(self, key: str, draft: Draft) -> bool:
        """Whether what is typed there has a say in what runs: in a person's own command, by its
        placeholders."""
        if self._kind != OWN_COMMAND:
            return True
        if key in (LENGTH, UNIT):
            key = f"train.{self._choice(UNIT).value}"
        command = draft.value("task.command")
        return cmd.is_told(command if isinstance(command, list) else None, key)

    def _has(self, field: Field, mode: str, draft: Draft) -> bool:
        if field.key == "task.use":
            return self._kind == OWN_CLASS
        if field.key == "task.command":
            return self._kind == OWN_COMMAND
        if self._kind == OWN_COMMAND and field.key in cmd.NEVER_TOLD:
            return False
        if field.key == "train.lr_reference_batch":
            return draft.value("train.lr_scale") != "none" or draft.says(field.key)
        chosen = modes.find(mode)
        return chosen is None or chosen.applies(field.key)

    async def show_task(self, info: TaskInfo | None, draft: Draft) -> None:
        """Draw the fields of the task's own parameters."""
        await self.query_one(TaskParams).show(info, draft)

    def show_problems(self, problems: Sequence[Problem]) -> None:
        """Each below its own field; those without one at the end."""
        by_field: dict[str, list[Problem]] = defaultdict(list)
        for problem in problems:
            if not problem.key.startswith("devices."):  # those stand with the devices
                by_field[field_of(problem.key)].append(problem)
        for row in (*TASK_ROWS, *ROWS, *MORE_ROWS):
            shown: list[str] = []
            for field in row.fields:
                widget = self.query_one("#" + widget_id(field.key))
                mine = by_field.get(field.key, []) if widget.display else []
                bad(widget, bool(mine))
                shown += [problem_text(p, _about(p, field, row)) for p in mine]
                if mine:
                    del by_field[field.key]
            _say(self.query_one(f"#{_row_id(row)}-problem", Static), shown)
        left = self.query_one(TaskParams).show_problems(
            [p for problems in by_field.values() for p in problems])
        where = {"task.use": "task", "": ""}
        _say(self.query_one("#other-problems", Static),
             [problem_text(p, where.get(p.key, p.key)) for p in left])
        if any(p.key in {f.key for r in MORE_ROWS for f in r.fields} for p in problems):
            self.query_one("#more", Collapsible).collapsed = False

    def show_verdict(self, problem: Problem | str | None) -> None:
        """Switch Launch on, or say above it why not: which field, and what is wrong with it."""
        button, why = self.query_one("#launch", Button), self.query_one("#verdict", Static)
        button.disabled = problem is not None
        button.label = Content("Launch  ctrl+l" if problem is None else "Can't launch yet")
        said = blame(problem) if isinstance(problem, Problem) else problem or ""
        why.update(Content(said))
        why.display = bool(said)

    def focus_problem(self, problems: Sequence[Problem]) -> None:
        """To the first field that something is wrong with."""
        for problem in problems:
            for widget in self.query("#" + widget_id(field_of(problem.key))):
                if widget.display:
                    widget.focus()
                    return

    # --- what is typed -------------------------------------------------------------------------

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        key = _key_of(event.input.id)
        if key == LENGTH:
            self._say_length()
        elif key is not None:
            self.post_message(self.Edited(key, event.value))

    @on(Choice.Changed)
    def _chose(self, event: Choice.Changed) -> None:
        event.stop()
        key = _key_of(event.choice.id)
        if key == UNIT:
            self._say_length()
        elif key is not None:
            self.post_message(self.Edited(key, event.value))

    @on(Select.Changed, "#task-choice")
    def _task_picked(self, event: Select.Changed) -> None:
        event.stop()
        # A list says what it begins with too, and may say it after the draft was shown.
        if event.value == self._kind or event.value != event.select.value:
            return
        self._kind = str(event.value)
        command = self._kind == OWN_COMMAND
        self.post_message(self.TaskChosen("" if self._kind in (OWN_CLASS, OWN_COMMAND)
                                          else self._kind, command))

    def _say_length(self) -> None:
        unit, text = self._choice(UNIT).value, self._input(LENGTH).value
        self.post_message(self.Edited(f"train.{unit}", text))

    def on_descendant_focus(self) -> None:
        self._tell()

    def on_descendant_blur(self) -> None:
        self._tell()

    def _tell(self) -> None:
        """What the focused field means; asked anew each time, as focus and blur of two widgets
        come in any order."""
        focused = self.screen.focused
        field = FIELDS.get(_key_of(focused.id) or "") if focused is not None else None
        text = field.help if field else self.query_one(TaskParams).help_of(focused)
        if field and focused is not None and focused.has_class("-untold"):
            text = f"{_untold(field.key, self._choice(UNIT).value)} {text}"
        if focused is not None and focused.id == "task-choice":
            text = "What is trained: a task that ships, a class of your own, or your own script"
        self.query_one("#field-help", Static).update(Content(text))

    # --- helpers -------------------------------------------------------------------------------

    def action_focus_previous(self) -> None:
        self.screen.focus_previous()

    def action_focus_next(self) -> None:
        self.screen.focus_next()

    def _input(self, key: str) -> Input:
        return self.query_one("#" + widget_id(key), Input)

    def _choice(self, key: str) -> Choice:
        return self.query_one("#" + widget_id(key), Choice)


def blame(problem: Problem) -> str:
    """"lr: expected a number greater than 0", in a few lines; all of it stands with the field."""
    said, key = clean(problem.message, 120), field_of(problem.key)
    if key.startswith("task.params."):
        where = clean(key.removeprefix("task.params."))
    elif key == LENGTH:
        where = problem.key.removeprefix("train.")
    elif key.startswith("devices."):
        where = "devices"
    elif key in ("task.use", "task.command"):
        where = "task" if key == "task.use" else "command"
    else:
        where = next((f.label or row.label for row in (*ROWS, *MORE_ROWS) for f in row.fields
                      if f.key == key), key)
    return f"{where}: {said}" if where else said


def _about(problem: Problem, field: Field, row: FormRow) -> str:
    """What is meant, where the place below the row does not say it."""
    if field.key == "task.command":  # which word of the command
        return problem.value if isinstance(problem.value, str) else ""
    return field.label if len(row.fields) > 1 else ""


def _say(place: Static, lines: Sequence[str]) -> None:
    place.update(Content("\n".join(lines)))
    place.display = bool(lines)


def _default(key: str, mode: str) -> str:
    if key == "parallel.master_port":
        chosen = modes.find(mode)
        return str(chosen.port) if chosen and chosen.port else "any"
    return Draft().text(key)


def _untold(key: str, unit: str) -> str:
    """What to do so that a person's own command is told of a field."""
    name = cmd.TOLD_BY[f"train.{unit}" if key in (LENGTH, UNIT) else key][0]
    return f"Your command is not told this: write {{{name}}} where it is to stand."


def _row_id(row: FormRow) -> str:
    return "row-" + row.fields[0].key.replace(".", "-")


_KEYS = {widget_id(key): key for key in FIELDS}


def _key_of(name: str | None) -> str | None:
    return _KEYS.get(name or "")


def _first(doc: str) -> str:
    sentence = " ".join(doc.split()).partition(". ")[0].rstrip(".")
    return clean(sentence, 56)
