"""Does the draft fit, and what would run? Asked of the engine, off the screen's loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpu_engine.devices import Inventory
from gpu_engine.errors import Problem, SpecError, UserError
from gpu_engine.launch import Prepared, prepare
from gpu_engine.plan import LaunchPlan
from gpu_engine.spec import RunSpec, from_dict


@dataclass(frozen=True, slots=True)
class Review:
    """What the engine says to a draft."""

    problems: tuple[Problem, ...]
    prepared: Prepared | None = None
    """None as long as there is a problem."""

    @property
    def plan(self) -> LaunchPlan | None:
        return self.prepared.plan if self.prepared else None


def review(data: dict[str, Any], inventory: Inventory,
           base: tuple[str, RunSpec] | None) -> Review:
    """Blocks for the slow questions (is the port free, is there such a task)."""
    try:
        return Review((), prepare(from_dict(data), inventory=inventory, base=base))
    except SpecError as err:
        return Review(err.problems)
    except UserError as err:
        return Review((Problem("", None, str(err)),))
