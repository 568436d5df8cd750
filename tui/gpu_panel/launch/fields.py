"""The fields of the form, made from the schema of the spec and from the task's source.

Each key has a field: its name, its type (a choice for a choice), its default in the empty field,
and its docstring as help. By hand are made the task, the mode and the batch. What is typed goes
into the draft as text; the engine decides what it means.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.events import Paste
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, Static

from gpu_engine.common import values
from gpu_engine.common.clean import clean
from gpu_engine.common.errors import Problem
from gpu_engine.common.values import Kind
from gpu_engine.plan import own_command
from gpu_engine.plan.records import Interpreter
from gpu_engine.spec import modes
from gpu_engine.spec.catalog import TaskField, TaskInfo, key_docs
from gpu_engine.spec.schema import SECTIONS, TABLES, keys
from gpu_engine.spec.typed_command import one_line
from gpu_panel.common.choice import Choice
from gpu_panel.common.painting import put
from gpu_panel.common.picking import pick
from gpu_panel.common.rows import cells, fit
from gpu_panel.launch.draft import OF_SLURM, Draft

OWN_CLASS, OWN_COMMAND = "own class", "own command"
PARAMS = "task.params."
_HEAD, _LABEL = 7, 20
"""Cells for the heading of a section, and for the label of a field."""
_IN_A_ROW, _GAP = 2, 2
_WIDEST = 14
"""Cells of options side by side; wider ones show only the chosen one, and a menu."""
_WHOLE_ROW = ("task.use", "task.command", "parallel.mode", "run.env", "run.python", "run.sbatch")
_HEADS = {"devices": "Slurm", "parallel": "Mode", "batch": "Batch", "amp": "AMP", "train": "Train",
          "run": "Run"}
_PLACEHOLDERS = {"task.use": "module:Class or path/to/file.py:Class",
                 "task.command": "python train.py --batch-size {batch.per_gpu}",
                 "run.env": "none; for example NCCL_DEBUG=INFO", "devices.pick": "1",
                 "run.sbatch": "none; for example account=vision exclusive"}
"""What an empty field shows, where that is not the default."""
_LABELS = {
    "devices.pick": "devices of a node", "run.sbatch": "options of sbatch",
    "parallel.master_addr": "master address", "parallel.node_rank": "rank of this node",
    "parallel.timeout": "timeout (s)", "parallel.bucket_cap_mb": "bucket (MiB)",
    "parallel.static_graph": "always same graph", "parallel.find_unused": "unused parameters",
    "batch.meaning": "size is", "batch.accumulate": "accumulate steps",
    "amp.dtype": "precision", "amp.tf32": "TF32",
    "train.lr": "learning rate", "train.lr_scale": "scale the rate",
    "train.lr_reference_batch": "batch of that rate", "train.clip": "clip gradients at",
    "train.workers": "loader workers", "train.checkpoint_every": "save every (steps)",
    "train.checkpoint_async": "save meanwhile", "train.keep": "checkpoints kept",
    "train.best": "keep the best by", "train.eval_every": "evaluate every",
    "train.on_nonfinite": "at a loss of NaN", "train.hang_timeout": "longest hang (s)",
    "run.limit": "time limit", "run.limit_from": "limit begins at",
    "run.metrics": "printed values", "run.best": "best run by", "run.grace": "time to stop (s)",
    "run.grace_most": "time to save, then",
    "run.sync": "code on hosts", "run.host_wait": "wait for hosts (s)",
    "run.log_mb": "log size (MiB)", "run.env": "environment", "run.grad_norm": "gradient norm",
    "run.oom_snapshot": "memory snapshot"}
"""Keys whose names are no words for a label."""
NO_FIELD = frozenset({"task.params", "parallel.node_devices",
                      *(k for k in keys() if k.startswith("devices.") and k not in OF_SLURM)})
"""Keys without a field: devices are ticked, and each of a task's params has its own."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the form: a key of the spec, or a parameter of the task."""

    key: str
    label: str
    kind: Kind
    default: str
    """The text of the default, which an empty field shows."""
    help: str
    options: tuple[tuple[str, str], ...] = ()
    """(value, text) of each option; empty for a text field."""
    notes: tuple[str, ...] = ()
    """A few words about each option."""
    param: TaskField | None = None

    @property
    def whole_row(self) -> bool:
        kinds = {kind.name for kind in self.kind.args or (self.kind,)}
        return self.key in _WHOLE_ROW or (self.param is not None and not self.options
                                          and not kinds <= {"int", "float", "none", "any"})

    @property
    def widget_id(self) -> str:
        """"f-batch-size" for "batch.size"."""
        return "f-" + re.sub(r"[^\w-]", "-", self.key)


def _options(kind: Kind, *, none: bool = False) -> tuple[tuple[str, str], ...]:
    """(value, text) of what can be chosen; none for a type that is typed. `none`: also nothing."""
    plain = kind.without_none
    options = (("false", "no"), ("true", "yes")) if plain.name == "bool" else \
        tuple((text, clean(text)) for text, _ in plain.choices)
    return (("", "none"), *options) if options and none else options


def of_key(dotted: str) -> Field:
    """The field of a key of the spec."""
    key = keys()[dotted]
    about, options, notes = key_docs()[dotted].replace("`", ""), _options(key.kind), ()
    if dotted == "parallel.mode":
        options = tuple((m.name, m.short) for m in modes.every())
        notes = tuple(m.help for m in modes.every())
        about = ". ".join(f"{m.short}: {m.help}" for m in modes.every()) \
            + ". A script with its own ranks: DP"
    elif dotted == "devices.pick":
        about = "How many devices of each node Slurm is asked for"
    elif dotted == "task.command":
        about = "Your own script, unchanged, as you would type it. Placeholders: " + " ".join(
            "{" + name + "}" for name in own_command.PLACEHOLDERS) + "; write {{ for a brace"
    return Field(dotted, _LABELS.get(dotted, key.name.replace("_", " ")), key.kind,
                 _PLACEHOLDERS.get(dotted) or values.show(key.default), about, options, notes)


def of_param(param: TaskField) -> Field:
    """The field of a task's parameter."""
    default = repr(param.default) if isinstance(param.default, float) else \
        "" if param.default is None else clean(values.show(param.default))
    kind = values.describe(param.kind) if param.kind.without_none.name == "choice" else param.type
    about = "" if param.required else f", default {default or '…'}"
    return Field(
        PARAMS + param.name, clean(param.name), param.kind,
        "needed" if param.required else default,
        f"{clean(param.name)} ({clean(kind)}{about})" + f": {clean(param.help)}" * bool(param.help),
        _options(param.kind, none=param.kind.has("none") and param.default is None
                 and not param.required), param=param)


FIELDS = {key: of_key(key) for key in keys() if key not in NO_FIELD}


class CommandInput(Input):
    """An Input that takes all lines of what is pasted, where others take the first."""

    def on_paste(self, event: Paste) -> None:
        """Put the lines where the cursor is, or in the place of what is selected."""
        event.prevent_default()
        event.stop()
        self.replace(one_line(event.text), *sorted(self.selection))


class FieldRow(Horizontal):
    """Fields side by side, or one that takes the row; below it what is wrong with them. It draws
    heading and labels itself: a widget for each takes as long to mount and style as a field."""

    DEFAULT_CSS = "FieldRow { height: auto; }"

    def __init__(self, head: str, fields: Sequence[tuple[str, Widget]]) -> None:
        super().__init__(*(widget for _, widget in fields), classes="row")
        self._head, self._labels = head, fields
        self._below: Static | None = None
        self.adapt()

    def adapt(self) -> None:
        """Show it if one of its fields is shown."""
        shown = [widget for _, widget in self._labels if widget.display]
        self.display = bool(shown)
        for widget in shown:  # the first that is shown has the heading before it
            left = _LABEL + (_HEAD if widget is shown[0] else _GAP)
            if widget.styles.margin.left != left:
                widget.styles.margin = (0, 0, 0, left)
                self.refresh()

    def render(self) -> Content:
        text = self._head
        for label, widget in self._labels:
            if widget.display:
                at = widget.region.x - self.region.x - _LABEL
                text = fit(text, max(at, _HEAD)) + fit(label, _LABEL - 1)
        return Content.styled(text, "$text-muted")

    def show(self, problems: Sequence[str], note: str | None = None) -> None:
        """Show these below the fields, and what else is to be said of them."""
        lines = [Content.styled(p, "$text-error") for p in problems]
        lines += [Content.styled(note, "$text-accent")] if note else []
        if self._below is None:
            if not lines or not isinstance(self.parent, Widget):
                return
            self._below = Static("", classes="below")
            self.parent.mount(self._below, after=self)
        put(self._below, Content("\n").join(lines))
        self._below.display = bool(lines)


class Fieldset(VerticalScroll, inherit_bindings=False):  # its up and down would scroll
    """All fields of the form."""

    @dataclass
    class Edited(Message):
        task: bool = False
        """Whether the task is another one, whose parameters have to be drawn."""

    def __init__(self, tasks: Sequence[TaskInfo], draft: Draft) -> None:
        """`tasks`: those that ship with gpu-panel."""
        super().__init__(id="fields", can_focus=False)
        self._tasks = tuple(tasks)
        self.draft = draft
        self._own_class = False
        """Whether "own task class" was chosen, and nothing typed yet."""
        self.fits: str | None = None
        """What is known of the largest batch that fits, for `show_problems`."""
        self._rows: list[tuple[FieldRow, list[Field]]] = []
        self._params: list[tuple[FieldRow, list[Field]]] = []
        self._widgets: dict[str, Choice | Input] = {}
        """Key → its widget."""
        options = [(t.use, f"{t.name} · {_first(t.doc)}" if t.doc else t.name) for t in tasks]
        options += [(OWN_CLASS, "own task class …"), (OWN_COMMAND, "own command …")]
        self.task_choice = Choice(options, closed=True, id="task-choice")
        self._one_at_a_time = asyncio.Lock()

    # --- building ------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        yield FieldRow("Task", [("task", self.task_choice)])
        self._rows = self._made("", [FIELDS["task.use"], FIELDS["task.command"]])
        yield from (row for row, _ in self._rows)
        yield Vertical(id="params")
        for section in (s for s in SECTIONS if s in _HEADS):
            fields = [f for key, f in FIELDS.items() if (
                key in OF_SLURM if section == "devices" else
                key.startswith(f"{section}.") and key not in OF_SLURM)]
            made = self._made(_HEADS[section], [FIELDS["name"]] * (section == "run") + fields)
            self._rows += made
            yield from (row for row, _ in made)

    def _made(self, head: str, fields: Iterable[Field]) -> list[tuple[FieldRow, list[Field]]]:
        """Rows of widgets, the first with this heading: a few fields beside each other, long ones
        alone."""
        made: list[tuple[FieldRow, list[Field]]] = []
        for alone, some in groupby(fields, lambda field: field.whole_row):
            several, many = list(some), 1 if alone else _IN_A_ROW
            for parts in (several[i:i + many] for i in range(0, len(several), many)):
                made.append((FieldRow("" if made else head,
                                      [(f.label, self._widget(f)) for f in parts]), parts))
        return made

    def _widget(self, field: Field) -> Choice | Input:
        if field.options:
            wide = sum(cells(text) + 4 for _, text in field.options) > _WIDEST
            widget: Choice | Input = Choice(
                field.options, id=field.widget_id, classes="field", notes=field.notes,
                closed=wide and field.key != "parallel.mode")
        else:
            kind = CommandInput if field.key == "task.command" else Input
            widget = kind(id=field.widget_id, classes="field", compact=True,
                          placeholder=field.default)
        self._widgets[field.key] = widget
        return widget

    async def show_task(self, task: TaskInfo | None) -> None:
        """Draw the fields of the task's parameters, unless they are there, and fill them."""
        fields = [of_param(field) for field in task.fields] if task else []
        async with self._one_at_a_time:
            if fields != [field for _, parts in self._params for field in parts]:
                self._params = []
                for key in [key for key in self._widgets if key.startswith(PARAMS)]:
                    del self._widgets[key]
                made = self._made("", fields)
                place = self.query_one("#params", Vertical)
                async with place.batch():
                    await place.remove_children()
                    await place.mount_all(row for row, _ in made)
                self._params = made
                self.on_resize()
            self._fill(self._params)

    def on_resize(self) -> None:
        """Keep the field with the focus in view."""
        focused = self.screen.focused
        if focused is not None and self in focused.ancestors:
            self.call_after_refresh(focused.scroll_visible, animate=False)

    @property
    def _fields(self) -> Iterable[Field]:
        return (field for _, parts in (*self._rows, *self._params) for field in parts)

    # --- showing a draft -----------------------------------------------------------------------

    def edit(self, draft: Draft) -> None:
        """From now on what is typed goes into this one."""
        self.draft, self._own_class = draft, False

    def fill(self) -> None:
        """Show the draft's values, without reporting that anything was typed."""
        with self.prevent(Choice.Changed):
            self.task_choice.value = self._kind
        self._fill(self._rows)
        self.adapt()

    @property
    def _kind(self) -> str:
        """What is trained: a task that ships, a class or a command of the person's own."""
        use = self.draft.text("task.use")
        known = use in [t.use for t in self._tasks] and not self._own_class
        return OWN_COMMAND if self.draft.says("task.command") else use if known else OWN_CLASS

    def _fill(self, rows: Iterable[tuple[FieldRow, list[Field]]]) -> None:
        draft = self.draft
        with self.prevent(Input.Changed, Choice.Changed):
            for field in (field for _, parts in rows for field in parts):
                widget, said = self._widgets[field.key], draft.says(field.key)
                if isinstance(widget, Choice):
                    widget.value = draft.text(field.key) if field.param is None else _chosen(
                        field, draft.value(field.key) if said else field.param.default)
                elif widget.value.strip() != (text := draft.text(field.key) if said else ""):
                    widget.value = text

    def show_interpreter(self, python: Interpreter | None) -> None:
        """Show what the ranks of a task would run in; None: that is not known."""
        self._input("run.python").placeholder = clean(python.sentence()) if python else ""

    def adapt(self) -> None:
        """Show only the fields that the chosen mode and task use, with defaults in empty ones."""
        mode = modes.find(self.draft.mode)
        with self.prevent(Choice.Changed):
            self._widgets["parallel.mode"].value = self.draft.mode
        for row, parts in self._rows:
            for field in parts:
                self._widgets[field.key].display = self._has(field.key, mode)
            row.adapt()
        self._input("parallel.master_port").placeholder = str(mode.port) \
            if mode is not None and mode.port else "any"
        self._input("train.epochs").placeholder = "" if self.draft.says("train.steps") else "1"

    def _has(self, key: str, mode: modes.Mode | None) -> bool:
        draft, kind = self.draft, self._kind
        if key in (*OF_SLURM, "parallel.nodes") and draft.on_slurm:
            return True
        if key in OF_SLURM:  # what has no effect elsewhere is refused, in sight
            return key in draft.data.get("run", {})
        if key in ("task.use", "task.command"):
            return kind == (OWN_CLASS if key == "task.use" else OWN_COMMAND)
        # What a command has no placeholder for has no effect, nor what is for a command on a task.
        command = draft.value("task.command")
        heard = command if isinstance(command, list) else ()
        if not own_command.is_told(heard if kind == OWN_COMMAND else None, key):
            return draft.says(key)
        if key == "train.lr_reference_batch":
            return draft.text("train.lr_scale") != "none" or draft.says(key)
        if (draft.hosts or draft.on_slurm) and key in ("parallel.nodes", "parallel.node_rank"):
            return False  # they follow from the hosts
        if draft.on_slurm and mode is not None and mode.several_nodes and key in (
                "parallel.master_addr", "parallel.master_port"):
            return False  # where they meet is the first node's affair
        return mode is None or mode.applies(key)

    # --- problems ------------------------------------------------------------------------------

    def show_problems(self, problems: Sequence[Problem]) -> None:
        """Show each problem below its field. Those without one stand where the plan would."""
        by_field: dict[str, list[Problem]] = defaultdict(list)
        for problem in problems:
            by_field[field_of(problem.key)].append(problem)
        for row, parts in (*self._rows, *self._params):
            texts: list[str] = []
            for field in parts:
                mine = by_field[field.key] if self._widgets[field.key].display else []
                self._widgets[field.key].set_class(bool(mine), "-invalid")
                texts += [_problem(p, field.label if len(parts) > 1 else "") for p in mine]
            told = any(field.key == "batch.size" for field in parts)
            row.show(texts, clean(self.fits) if told and self.fits else None)

    def labels(self, problems: Sequence[Problem]) -> list[str]:
        """For each problem the label of the field below which it stands; "" for none."""
        shown = {f.key: f.label for f in self._fields if self._widgets[f.key].display}
        return [shown.get(field_of(p.key), "") for p in problems]

    def focus_problem(self, problems: Sequence[Problem]) -> None:
        for problem in problems:
            widget = self._widgets.get(field_of(problem.key))
            if widget is not None and widget.display:
                widget.focus()
                self.call_after_refresh(self.on_resize)  # it may have been hidden until now
                return

    # --- what is typed -------------------------------------------------------------------------

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        self._report(event.input, event.value)

    @on(Choice.Changed)
    def _chose(self, event: Choice.Changed) -> None:
        event.stop()
        if event.choice is not self.task_choice:
            self._report(event.choice, event.value)
            return
        self._own_class = event.value == OWN_CLASS
        if event.value == OWN_COMMAND:
            self.draft.put("task.command", "")
        else:
            self.draft.use_task("" if self._own_class else event.value)
        self.fill()
        self.post_message(self.Edited(task=True))

    def _report(self, widget: Widget, text: str) -> None:
        field = self._field(widget)
        if field is None:
            return
        if field.param is not None:
            self.draft.put_param(field.param, text)
        else:
            self.draft.put(field.key, text)
        if field.key in ("parallel.mode", "train.epochs", "train.steps"):
            self.fill()  # others follow from it
        self.post_message(self.Edited(task=field.key == "task.use"))

    def _field(self, widget: Widget | None) -> Field | None:
        """The field of a widget; None if it is none of the fields."""
        return next((f for f in self._fields if self._widgets[f.key] is widget), None)

    def help_of(self, focused: Widget | None) -> str:
        """The help of the focused field; empty if `focused` is none of the fields."""
        if focused is self.task_choice:
            return "What is trained: a task that ships with gpu-panel, a class of your own, or " \
                "your own script"
        field = self._field(focused)
        return field.help if field is not None else ""

    # --- going to a field ----------------------------------------------------------------------

    def pick_field(self) -> None:
        """Go to the field of which the person types a part of the name."""
        shown = [(field, self._widgets[field.key]) for field in self._fields]
        pick(self.app, "type a part of a field's name", [
            ("task", "", self.task_choice.focus),
            *((field.key, field.help, widget.focus) for field, widget in shown if widget.display)])

    def focus_varied(self) -> None:
        """Go to what is mostly changed before a run is made again: the learning rate, or the
        command."""
        self._input("task.command" if self._kind == OWN_COMMAND else "train.lr").focus()

    def _input(self, key: str) -> Input:
        widget = self._widgets[key]
        assert isinstance(widget, Input)
        return widget


def field_of(problem_key: str) -> str:
    """The key of the field that shows a problem of `problem_key`."""
    return next((t for t in TABLES if problem_key.startswith(f"{t}.")), problem_key)


def _problem(problem: Problem, label: str) -> str:
    """The text below a field: "✗ master port: the port is taken …"."""
    if problem.key == "task.command":  # which word of the command
        label = problem.value if isinstance(problem.value, str) else ""
    elif (field := field_of(problem.key)) != problem.key:
        label = problem.key.removeprefix(f"{field}.")
    message = clean(problem.message)
    return f"✗ {clean(label)}: {message}" if label else f"✗ {message}"


def _chosen(field: Field, value: object) -> str:
    """The option of a parameter that a value stands for; the value itself if it is none of them."""
    try:
        value = values.convert(value, field.kind)
    except ValueError:
        return values.show(value)
    texts = [text for text, choice in field.kind.without_none.choices if choice is value]
    return texts[0] if texts else values.show(value)


def _first(doc: str) -> str:
    sentence = " ".join(doc.split()).partition(". ")[0].rstrip(".")
    return clean(sentence, 56)
