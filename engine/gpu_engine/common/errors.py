"""Mistakes that a person can correct: raised with their facts, shown in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that does not fit: where, what was given, what would fit."""

    key: str
    """Dotted key of the spec ("batch.size"), or "" where no one key is to blame."""
    value: object
    """What was given."""
    message: str
    """What is wrong and what would fit, in one sentence without a full stop."""

    def __str__(self) -> str:
        if not self.key:
            return self.message
        if self.value is None:
            return f"{self.key}: {self.message}"
        return f"{self.key} = {_toml_like(self.value)}: {self.message}"


class UserError(Exception):
    """Something that the person can correct. Shown as text, without a traceback; exit code 2."""

    title = "That can't be done"


class SpecError(UserError):
    """The spec is wrong. Carries every problem that was found."""

    title = "The run as asked for does not fit"

    def __init__(self, problems: list[Problem] | tuple[Problem, ...]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(p) for p in self.problems))


def _toml_like(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_like(v) for v in value) + "]"
    return str(value)
