"""The fields of the launch form: a table of the spec's keys and how each is shown. Keys that the
table does not name get a field from the schema, in the last rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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
    help: str
    options: tuple[tuple[str, str], ...] = ()
    """(value, text) of each option; empty for a text field."""
    width: int = 7
    """Width of a text field in cells; 0: all the room left."""
    placeholder: str = ""
    """Shown in an empty field instead of the default."""
    zero: str = ""
    """The word that is shown, and may be typed, for 0; empty: 0 is a number like others."""
    notes: tuple[str, ...] = ()
    """A few words about each option, for its menu."""

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
    FormRow("", (Field("task.use", "class", "Your task: module:Class or path/to/file.py:Class",
                       width=0, placeholder="module:Class or path/to/file.py:Class"),)),
    FormRow("", (Field("task.command", "command", "Your own script, unchanged, as you would type "
                       f"it. Placeholders: {_FILLED}; write {{{{ for a brace", width=0,
                       placeholder="python train.py --batch-size {batch.per_gpu}"),)),
)

ROWS = (
    FormRow("Mode", (Field("parallel.mode", "",
                           ". ".join(f"{m.short}: {m.help}" for m in modes.every()),
                           options=tuple((m.name, m.short) for m in modes.every()),
                           notes=tuple(m.help for m in modes.every())),)),
    FormRow("", (
        Field("parallel.nodes", "machines", "How many machines take part", width=4),
        Field("parallel.node_rank", "this is number", "Which of them this machine is, counted "
              "from 0", width=4),
    )),
    FormRow("", (
        Field("parallel.master_addr", "meet at", "Address or host name of machine 0, as all "
              "others reach it", width=16),
        Field("parallel.master_port", "port", "TCP port where the ranks meet; on one machine "
              "any free one will do", width=7),
    )),
    FormRow("Batch", (
        Field("batch.size", "", "Examples in one step"),
        Field("batch.meaning", "", "global: the size is for all devices together. per GPU: it is "
              "for each device", options=(("global", "global"), ("per_gpu", "per GPU"))),
        Field("batch.accumulate", "accumulate", "Backward passes per step: 2 halves the memory "
              "for the same global batch", width=4),
    )),
    FormRow("AMP", (Field("amp.dtype", "", "Automatic mixed precision; fp16 comes with a "
                          "GradScaler",
                          options=(("off", "off"), ("bf16", "bf16"), ("fp16", "fp16"))),)),
    FormRow("Train", (
        Field(UNIT, "", "How long: epochs over the data, or optimizer steps",
              options=(("epochs", "epochs"), ("steps", "steps"))),
        Field(LENGTH, "", "How many"),
        Field("train.lr", "learning rate", "Learning rate, before it is scaled", width=9),
    )),
    FormRow("", (
        Field("train.lr_scale", "scaling", "Multiply the learning rate by the "
              "global batch divided by a reference, or by the square root of that",
              options=(("none", "none"), ("linear", "linear"), ("sqrt", "root"))),
        Field("train.lr_reference_batch", "reference batch", "The global batch that the learning "
              "rate was chosen for", width=6),
    )),
)

MORE_ROWS = (
    FormRow("", (Field("name", "name", "What the run is called", width=24),)),
    FormRow("", (
        Field("train.seed", "seed", "The same seed gives the same training", width=6),
        Field("train.clip", "clip gradients at", "Largest gradient norm; off leaves gradients "
              "alone", width=6, zero="off"),
        Field("train.workers", "loader workers", "DataLoader processes of each rank; none: the "
              "rank loads its data itself", width=5, zero="none"),
        Field("train.weight_decay", "weight decay", "Weight decay of the default optimizer, "
              "AdamW; empty: PyTorch's default. A task that makes its own optimizer sets it there",
              width=6, zero="off", placeholder="0.01"),
    )),
    FormRow("", (
        Field("train.checkpoint_every", "checkpoint every", "Steps between checkpoints; or "
              "only at the end", width=7, zero="at end"),
        Field("train.keep", "keep newest", "How many of the newest checkpoints are kept, at "
              "least 2", width=4),
        Field("train.restarts", "restarts", "How often to restart the whole run from the last "
              "checkpoint after a failure", width=4, zero="off"),
    )),
    FormRow("", (
        Field("train.eval_every", "evaluate every", "Steps between evaluations; or "
              "after each epoch and at the end", width=10, zero="each epoch"),
        Field("train.best", "keep best by", "Also keep the checkpoint with the best value of an "
              "evaluation: loss, or max:accuracy", width=14, placeholder="none"),
    )),
    FormRow("", (
        Field("train.on_nonfinite", "NaN loss", "What to do when the loss of a step is "
              "not a finite number",
              options=(("stop", "stop"), ("skip", "skip"), ("continue", "continue"))),
        Field("train.checkpoint_async", "train while saving", "Write checkpoints while training "
              "goes on, from a copy in host memory", options=(("true", "yes"), ("false", "no"))),
    )),
    FormRow("", (
        Field("train.hang_timeout", "end if stuck for (s)", "Seconds that a rank may stand still "
              "before the run is ended and every thread's stack is logged; must be longer than "
              "an evaluation or a checkpoint takes. off: wait for ever", width=6, zero="off"),
        Field("run.grace", "time to save (s)", "Seconds that ranks have to save after being asked "
              "to stop, before they are ended", width=5),
        Field("run.log_mb", "size of logs (MiB)", "MiB of newest output that are kept for each "
              "rank, and as much again of older output", width=5),
    )),
    FormRow("", (
        Field("parallel.timeout", "ranks wait for (s)", "Seconds that ranks wait for each other "
              "before they give up", width=6),
        Field("parallel.find_unused", "find unused parameters", "Look for parameters that a step "
              "did not use: DDP then raises no error about them, but is slower",
              options=(("false", "no"), ("true", "yes"))),
    )),
    FormRow("", (
        Field("amp.tf32", "TF32", "Let float32 products use TF32, on GPUs that have it; "
              "off leaves it as PyTorch or the task has it",
              options=(("false", "off"), ("true", "on"))),
        Field("run.grad_norm", "gradient norm", "Record the norm of the gradients of each step of "
              "your own script; costs a pass over them", options=(("false", "off"),
                                                                  ("true", "on"))),
    )),
    FormRow("", (
        Field("run.sync", "code on hosts", "How the code comes to other hosts. none: it is "
              "there; send: what git does not ignore is sent, and data never",
              options=(("none", "is there"), ("send", "send"))),
    )),
    FormRow("", (Field("run.python", "interpreter", "Interpreter for the ranks, which only needs "
                       "torch; empty: the first near by that has it. enter on the line below shows "
                       "them all", width=0, placeholder="/path/to/env/bin/python"),)),
    FormRow("", (Field("run.env", "variables", "Variables for the environment of the ranks, on "
                       "every machine, as they would be typed before a command", width=0,
                       placeholder="NCCL_DEBUG=INFO HF_HOME=/data/hf"),)),
)

NO_FIELD = frozenset({
    "task.params", "devices.ids", "devices.pick", "devices.hosts",  # ticks
    "devices.share",  # Launch asks
    "parallel.node_devices",
    "train.epochs", "train.steps",  # LENGTH and UNIT
    "parallel.backend", "parallel.launcher", "parallel.bucket_cap_mb", "parallel.static_graph",
})
"""Keys without a field of their own: they are set in another way, or only in presets and by
`--set`."""


def rows_of(keys: Iterable[Key]) -> tuple[FormRow, ...]:
    """A row for each of `keys`, made from its name, type and docstring in the schema."""
    from gpu_engine.spec.key_docs import docs

    return tuple(FormRow("", (Field(key.dotted, key.name.replace("_", " "), docs()[key.dotted],
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
