"""The interpreter of a run's ranks, and the plan that starts them in it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_engine.common import paths
from gpu_engine.plan.build import resolve
from gpu_engine.plan.check import Checked
from gpu_engine.plan.records import Interpreter, LaunchPlan
from gpu_engine.spec.schema import RunSpec

if TYPE_CHECKING:
    from gpu_engine.interpreters.choose import Chosen


def of(spec: RunSpec, folder: Path | None = None) -> Chosen | None:
    """What the ranks of a run in `folder` (None: this process's) run in; None for a person's own
    command, which names its interpreter itself. May ask interpreters."""
    if spec.task.use is None:
        return None
    from gpu_engine.interpreters import choose

    return choose.of_ranks(spec.run.python, paths.folder(folder))


def planned(checked: Checked, taken: Chosen | None, *, base: tuple[str, RunSpec] | None = None,
            environ: Mapping[str, str] = os.environ) -> LaunchPlan:
    """`plan.build.resolve` with this interpreter, which the plan then tells of. None: with our own.
    Raises SpecError."""
    python = taken.python if taken is not None else None
    plan = resolve(checked, python=python or sys.executable, base=base, environ=environ)
    return plan if taken is None else replace(plan, interpreter=record(taken))


def record(taken: Chosen) -> Interpreter | None:
    """`taken` as a plan tells of it; None: there is none."""
    seen = taken.seen
    if seen is None:
        return None
    build = seen.build
    return Interpreter(
        seen.path, taken.sentence(), ".".join(map(str, seen.version)) if seen.version else None,
        build.version if build else None, build.cuda if build else None,
        build.hip if build else None, str(taken.folder) if taken.folder is not None else None)
