"""The fields of the launch form: a table of the spec's keys and how each is shown. Keys that the
table does not name get a field from the schema, in the last rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from string import ascii_lowercase, digits

from gpu_engine.common.clean import clean
from gpu_engine.common.errors import Problem
from gpu_engine.common.values import Kind
from gpu_engine.plan.own_command import PLACEHOLDERS
from gpu_engine.spec import modes
from gpu_engine.spec.schema import Key, keys

LENGTH, UNIT = "train.length", "train.unit"
"""Two fields for train.epochs and train.steps, of which only one is set."""
TASK = "task.choice"
"""The field that chooses between task.use and task.command, and among the tasks that ship."""
OWN_CLASS, OWN_COMMAND = "own class", "own command"


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the form."""

    key: str
    label: str
    own_help: str = ""
    """What there is to say of a field without a key, or with more than the key's own words."""
    options: tuple[tuple[str, str], ...] = ()
    """(value, text) of each option; empty for a text field."""
    width: int = 7
    """Width of a text field in cells; 0: all the room left."""
    placeholder: str = ""
    """Shown in an empty field instead of the default."""
    zero: str = ""
    """The word that is shown, and may be typed, for 0; empty: 0 is a number like others."""
    notes: tuple[str, ...] = ()

    @property
    def help(self) -> str:
        """A few words about it: those of the schema, unless it has its own."""
        from gpu_engine.spec.catalog import key_docs  # when a field is first entered

        told = self.own_help or key_docs()[self.key].replace("`", "")
        return told.replace(" 0: ", f" {self.zero}: ") if self.zero else told

    def shown(self, text: str) -> str:
        """A value's text as the field shows it: "off" for 0."""
        return self.zero if self.zero and _is_zero(text) else text

    def meant(self, text: str) -> str:
        """What was typed as the text of a value: "0" for "off"."""
        return "0" if self.zero and text.strip().casefold() == self.zero.casefold() else text


def _is_zero(text: str) -> bool:
    try:
        return float(text) == 0
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class FormRow:
    """Fields on one line, with their problems below it."""

    label: str
    fields: tuple[Field, ...]


_FILLED = " ".join("{" + name + "}" for name in PLACEHOLDERS)

TASK_ROWS = (
    FormRow("", (Field("task.use", "class", width=0,
                       placeholder="module:Class or path/to/file.py:Class"),)),
    FormRow("", (Field("task.command", "command", "Your own script, unchanged, as you would type "
                       f"it. Placeholders: {_FILLED}; write {{{{ for a brace", width=0,
                       placeholder="python train.py --batch-size {batch.per_gpu}"),)),
)

ROWS = (
    FormRow("Mode", (Field("parallel.mode", "",
                           ". ".join(f"{m.short}: {m.help}" for m in modes.every())
                           + ". A script with its own ranks: DP",
                           options=tuple((m.name, m.short) for m in modes.every()),
                           notes=tuple(m.help for m in modes.every())),)),
    FormRow("", (Field("parallel.nodes", "machines", width=4),
                 Field("parallel.node_rank", "node rank", width=4))),
    FormRow("", (Field("parallel.master_addr", "master address", width=16),
                 Field("parallel.master_port", "port", width=7))),
    FormRow("Batch", (
        Field("batch.size", ""),
        Field("batch.meaning", "", options=(("global", "global"), ("per_gpu", "per GPU"))),
        Field("batch.accumulate", "accumulate", width=4),
    )),
    FormRow("AMP", (Field("amp.dtype", "", options=(("off", "off"), ("bf16", "bf16"),
                                                    ("fp16", "fp16"))),)),
    FormRow("Train", (
        Field(UNIT, "", "How long: epochs over the data, or optimizer steps",
              options=(("epochs", "epochs"), ("steps", "steps"))),
        Field(LENGTH, "", "How many"),
        Field("train.lr", "learning rate", width=9),
    )),
    FormRow("", (
        Field("train.lr_scale", "scaling",
              options=(("none", "none"), ("linear", "linear"), ("sqrt", "root"))),
        Field("train.lr_reference_batch", "reference batch", width=6),
    )),
)

_OFF_ON = (("false", "off"), ("true", "on"))
_NO_YES = (("false", "no"), ("true", "yes"))

MORE_ROWS = (
    FormRow("", (Field("name", "name", width=24),)),
    FormRow("", (Field("train.seed", "seed", width=6),
                 Field("train.clip", "clip gradients at", width=6, zero="off"),
                 Field("train.workers", "loader workers", width=5, zero="none"),
                 Field("train.weight_decay", "weight decay", width=6, zero="off",
                       placeholder="0.01"))),
    FormRow("", (Field("train.checkpoint_every", "checkpoint every", width=7, zero="at end"),
                 Field("train.keep", "keep newest", width=4),
                 Field("train.restarts", "restarts", width=4, zero="off"))),
    FormRow("", (Field("train.eval_every", "evaluate every", width=10, zero="each epoch"),
                 Field("train.best", "keep best by", width=14, placeholder="none"))),
    FormRow("", (
        Field("train.on_nonfinite", "NaN loss",
              options=(("stop", "stop"), ("skip", "skip"), ("continue", "continue"))),
        Field("train.checkpoint_async", "train while saving", options=_NO_YES[::-1]),
    )),
    FormRow("", (Field("train.hang_timeout", "hang timeout (s)", width=6, zero="off"),
                 Field("run.grace", "time to save (s)", width=5),
                 Field("run.log_mb", "log size (MiB)", width=5))),
    FormRow("", (Field("parallel.timeout", "collective timeout (s)", width=6),
                 Field("parallel.find_unused", "find unused parameters", options=_NO_YES))),
    FormRow("", (Field("amp.tf32", "TF32", options=_OFF_ON),
                 Field("run.grad_norm", "gradient norm", options=_OFF_ON))),
    FormRow("", (Field("run.sync", "code on hosts",
                       options=(("none", "is there"), ("send", "send"))),
                 Field("run.host_wait", "wait for hosts (s)", width=6))),
    FormRow("", (Field("run.env", "variables", width=0,
                       placeholder="NCCL_DEBUG=INFO HF_HOME=/data/hf"),)),
    FormRow("", (Field("run.python", "interpreter", width=0,
                       placeholder="/path/to/env/bin/python"),)),
)

NO_FIELD = frozenset({
    "task.params", "devices.ids", "devices.pick", "devices.hosts",  # ticks
    "devices.share",  # Launch asks
    "parallel.node_devices",
    "train.epochs", "train.steps",  # LENGTH and UNIT
    "parallel.backend", "parallel.launcher", "parallel.bucket_cap_mb", "parallel.static_graph",
})
"""Keys without a field: they are set in another way, or only in presets and by `--set`."""


def rows_of(keys: Iterable[Key]) -> tuple[FormRow, ...]:
    """A row for each of `keys`, made from its name and type in the schema."""
    return tuple(FormRow("", (Field(key.dotted, key.name.replace("_", " "),
                                    options=_options(key.kind.without_none),
                                    width=0 if key.kind.has("str") else 9),)) for key in keys)


def _options(kind: Kind) -> tuple[tuple[str, str], ...]:
    if kind.name == "bool":
        return ("false", "no"), ("true", "yes")
    return tuple((text, text) for text, _ in kind.choices)


_PLACED = {f.key for row in (*TASK_ROWS, *ROWS, *MORE_ROWS) for f in row.fields}
_REST = [key for key in keys().values() if key.dotted not in _PLACED | NO_FIELD]
if _REST:  # keys that no row above names
    MORE_ROWS = (*MORE_ROWS, *rows_of(_REST))

FIELDS = {f.key: f for row in (*TASK_ROWS, *ROWS, *MORE_ROWS) for f in row.fields}


def field_of(problem_key: str) -> str:
    """The key of the field that shows a problem of `problem_key`."""
    if problem_key.startswith("run.env."):
        return "run.env"
    return LENGTH if problem_key in ("train.epochs", "train.steps") else problem_key


def widget_id(key: str) -> str:
    """The id of a key's widget: "batch.size" → "f-batch-size"."""
    return "f-" + key.replace(".", "-").replace(" ", "-")


_OWN = {TASK: "t", "task.use": "c", "task.command": "c", "parallel.mode": "m", "batch.size": "b",
        "batch.meaning": "g", "batch.accumulate": "a", "amp.dtype": "p", UNIT: "e", LENGTH: "n",
        "train.lr": "l", "train.lr_scale": "s"}
"""The letters of the fields that every form has, which thus never change."""


def letters(fields: Iterable[tuple[str, str]]) -> list[str]:
    """A letter for each (key, label): its own, else one of its label, else any, else ""."""
    fields = list(fields)
    free = [c for c in ascii_lowercase + digits if c not in _OWN.values()]
    found: list[str] = []
    for key, label in fields:
        letter = _OWN.get(key) or next((c for c in (*label.lower(), *free) if c in free), "")
        if letter in free:
            free.remove(letter)
        found.append(letter)
    return found


def problem_text(problem: Problem, label: str) -> str:
    """The text below a field: "✗ port: the port is taken …"."""
    message = clean(problem.message)
    return f"✗ {clean(label)}: {message}" if label else f"✗ {message}"


def blame(problem: Problem) -> str:
    """The text above Launch: "learning rate: expected a number", cut to a few lines. The text
    below the field is complete."""
    message, key = clean(problem.message, 120), field_of(problem.key)
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
    return f"{where}: {message}" if where else message


def label_of(problem: Problem, field: Field, row: FormRow) -> str:
    """The field, or the word of the command, that a problem is about; empty if that is clear."""
    if field.key == "task.command":  # which word of the command
        return problem.value if isinstance(problem.value, str) else ""
    if field.key == "run.env":
        return problem.key.removeprefix("run.env").removeprefix(".")
    return field.label if len(row.fields) > 1 else ""
