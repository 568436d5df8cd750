"""What is left of a run that nobody can ask any more: its last step, its last checkpoint."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpu_engine.runs import Run

_PIECE = 64 * 1024
_MOST_RANKS = 16


def words(run: Run) -> list[str]:
    """["last step 120", "last checkpoint step-00000100"], as far as there are such."""
    step, saved = last_step(run), last_checkpoint(run)
    return ([f"last step {step:,}"] if step is not None else []) \
        + ([f"last checkpoint {saved}"] if saved is not None else [])


def last_step(run: Run) -> int | None:
    """The last step that any rank told of; None where none did."""
    found = [_step_in(run.events(rank)) for rank in run.ranks()[:_MOST_RANKS]]
    return max((s for s in found if s is not None), default=None)


def last_checkpoint(run: Run) -> str | None:
    """The name of the newest checkpoint that was finished; whether it is sound is told by
    loading it."""
    try:
        names = sorted(e.name for e in os.scandir(run.checkpoints) if e.name.startswith("step-"))
    except OSError:
        return None
    return next((n for n in reversed(names)
                 if (run.checkpoints / n / "manifest.json").exists()), None)


def _step_in(path: Path) -> int | None:
    """The step of the last event that has one, from the end of the file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _PIECE))
            lines = file.read().split(b"\n")
    except OSError:
        return None
    for line in reversed(lines):
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and event.get("kind") in ("step", "phase", "end"):
            step = event.get("steps" if event["kind"] == "end" else "step")
            if isinstance(step, int) and not isinstance(step, bool) and step > 0:
                return step
    return None
