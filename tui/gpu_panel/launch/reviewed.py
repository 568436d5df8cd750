"""What the engine said of a draft. Pure data: the panes need it before the engine is imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpu_engine.common.errors import Problem
    from gpu_engine.launching.launcher import Prepared
    from gpu_engine.plan.records import Interpreter, LaunchPlan


@dataclass(frozen=True, slots=True)
class Review:
    """The engine's answer to a draft."""

    problems: tuple[Problem, ...]
    prepared: Prepared | None = None
    """What Launch starts; None if there is a problem, or hosts have to be asked first."""
    unusable: bool = False
    """Whether a device can't be used at all, so that sharing it would not help."""
    over_hosts: LaunchPlan | None = None
    """What would run on hosts, by what was seen of them; None if the run uses no hosts."""

    interpreter: Interpreter | None = None
    """What a task's ranks run in here; None: nothing has torch, not known, or an own command."""

    no_torch: Problem | None = None
    """That no interpreter near by has torch, which is one of `problems`: it can be installed."""

    @property
    def others(self) -> tuple[Problem, ...]:
        """The problems that a change in the form would mend."""
        return tuple(p for p in self.problems if p != self.no_torch)

    @property
    def plan(self) -> LaunchPlan | None:
        """What would run; None if there is a problem."""
        return self.prepared.plan if self.prepared else self.over_hosts
