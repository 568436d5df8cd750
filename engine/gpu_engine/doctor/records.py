"""What a check has found. Pure data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the answer."""

    level: Literal["ok", "note", "problem"]
    """note: worth knowing, runs work all the same. problem: something does not work."""
    text: str
    """In words, without a full stop."""
    cure: str | None = None
    """A command to type, or what to do where no command does it; None: nothing needs to be done."""


def ok(text: str) -> Finding:
    return Finding("ok", text)


def note(text: str, cure: str | None = None) -> Finding:
    return Finding("note", text, cure)


def problem(text: str, cure: str | None = None) -> Finding:
    return Finding("problem", text, cure)
