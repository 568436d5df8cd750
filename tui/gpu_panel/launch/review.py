"""The engine's answer to a draft: its problems, or what would run. Blocks: call it in a thread."""

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
    """The engine's answer to a draft."""

    problems: tuple[Problem, ...]
    prepared: Prepared | None = None
    """What Launch starts; None if there is a problem."""
    unusable: bool = False
    """Whether a device can't be used at all, so that sharing it would not help."""

    @property
    def plan(self) -> LaunchPlan | None:
        """What would run; None if there is a problem."""
        return self.prepared.plan if self.prepared else None


def review(data: dict[str, Any], inventory: Inventory,
           base: tuple[str, RunSpec] | None, shot: Snapshot | None = None) -> Review:
    """Review a draft's `data`. Blocks while it checks, for example, the port and the task.

    `base`: the preset's name and spec that the shown command builds on. `shot`: the newest snapshot
    of the devices; a lost device is refused here, one in use only when Launch is pressed.
    """
    unusable: list[Problem] = []
    full = disk_room.problem(places.runs_folder())
    if full is not None:  # no change in the form would help
        return Review((full,))
    try:
        spec = from_dict(data)
        unusable = preflight.unusable(spec, inventory, shot) if shot is not None else []
        prepared = prepare(spec, inventory=inventory, base=base)
        return Review(tuple(unusable), None if unusable else prepared, bool(unusable))
    except SpecError as err:
        # For a device that can't be used, it does not matter who holds it.
        known = [(p.key, p.value) for p in unusable]
        others = [p for p in err.problems if (p.key, p.value) not in known]
        return Review((*unusable, *others), unusable=bool(unusable))
    except UserError as err:
        return Review((Problem("", None, str(err)),))
