"""Does the draft fit, and what would run? Asked of the engine, off the screen's loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpu_engine.common import places
from gpu_engine.common.errors import Problem, SpecError, UserError
from gpu_engine.devices.records import Inventory, Snapshot
from gpu_engine.launch import preflight
from gpu_engine.launch.launcher import Prepared, prepare
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.runs import disk_room
from gpu_engine.spec.read import from_dict
from gpu_engine.spec.schema import RunSpec


@dataclass(frozen=True, slots=True)
class Review:
    """What the engine says to a draft."""

    problems: tuple[Problem, ...]
    prepared: Prepared | None = None
    """None as long as there is a problem."""
    unusable: bool = False
    """Whether one of the problems is a device that nobody can use: sharing does not help."""

    @property
    def plan(self) -> LaunchPlan | None:
        """What would run; None as long as there is a problem."""
        return self.prepared.plan if self.prepared else None


def review(data: dict[str, Any], inventory: Inventory,
           base: tuple[str, RunSpec] | None, shot: Snapshot | None = None) -> Review:
    """Blocks for the slow questions (is the port free, is there such a task). `shot`: the newest
    look at the devices; one that is lost is refused, whoever else is on it is asked about later."""
    unusable: list[Problem] = []
    full = disk_room.problem(places.runs_folder())
    if full is not None:  # nothing that is typed would help
        return Review((full,))
    try:
        spec = from_dict(data)
        unusable = preflight.unusable(spec, inventory, shot) if shot is not None else []
        prepared = prepare(spec, inventory=inventory, base=base)
        return Review(tuple(unusable), None if unusable else prepared, bool(unusable))
    except SpecError as err:
        # Of a device that nobody can use it does not matter who holds it.
        said = [(p.key, p.value) for p in unusable]
        others = [p for p in err.problems if (p.key, p.value) not in said]
        return Review((*unusable, *others), unusable=bool(unusable))
    except UserError as err:
        return Review((Problem("", None, str(err)),))
