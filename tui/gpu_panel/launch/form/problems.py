"""The form's problems as texts. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_engine.common.clean import clean
from gpu_panel.launch.form.fields import LENGTH, MORE_ROWS, ROWS, Field, FormRow, field_of

if TYPE_CHECKING:
    from gpu_engine.common.errors import Problem


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
    """The field, or the word of the command, that a problem below `row` is about; empty if that is
    clear."""
    if field.key == "task.command":  # which word of the command
        return problem.value if isinstance(problem.value, str) else ""
    if field.key == "run.env":
        return problem.key.removeprefix("run.env").removeprefix(".")
    return field.label if len(row.fields) > 1 else ""
