"""The letters by which one goes to a field of the form. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from string import ascii_lowercase, digits

from gpu_panel.launch.form.fields import LENGTH, TASK, UNIT

_OWN = {TASK: "t", "task.use": "c", "task.command": "c", "parallel.mode": "m", "batch.size": "b",
        "batch.meaning": "g", "batch.accumulate": "a", "amp.dtype": "p", UNIT: "e", LENGTH: "n",
        "train.lr": "l", "train.lr_scale": "s"}
"""The letters of the fields that every form has, which thus never change."""


def letters(fields: Iterable[tuple[str, str]]) -> list[str]:
    """A letter for each field, given as (key, label): its own, else the first in its label that is
    free, else any; "" where none is left."""
    fields = list(fields)
    free = [c for c in ascii_lowercase + digits if c not in _OWN.values()]
    found: list[str] = []
    for key, label in fields:
        letter = _OWN.get(key) or next((c for c in (*label.lower(), *free) if c in free), "")
        if letter in free:
            free.remove(letter)
        found.append(letter)
    return found
