"""What a check has found. Pure data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "problem"]
"""note: worth knowing, runs work all the same. problem: something does not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the answer."""

    level: Level
    text: str
    """In words, without a full stop."""
    cure: str | None = None
    """A command to type, or what to do where no command does it; None: nothing needs to be done."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that is looked at."""

    name: str
    """One word, also in `--json`."""
    look: Callable[[], Sequence[Finding]]
    """Looks and judges. May raise, and may hang."""
    seconds: float = 10.0
    """How long it may take."""


@dataclass(frozen=True, slots=True)
class Examined:
    """A check, and what it has found."""

    name: str
    findings: tuple[Finding, ...]


def ok(text: str) -> Finding:
    """All is well."""
    return Finding("ok", text)


def note(text: str, cure: str | None = None) -> Finding:
    """Worth knowing."""
    return Finding("note", text, cure)


def problem(text: str, cure: str | None = None) -> Finding:
    """Something does not work."""
    return Finding("problem", text, cure)
