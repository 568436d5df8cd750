"""What Slurm is asked for a run, made without asking it: the plan and the batch script."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gpu_engine.common import paths, units
from gpu_engine.common.errors import SpecError
from gpu_engine.plan import without_effect
from gpu_engine.plan.build import engine_line, resolve
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.remote.reach import hosts
from gpu_engine.runs.create import working_folder
from gpu_engine.slurm import script
from gpu_engine.spec import modes
from gpu_engine.spec.host_names import SLURM, parse_all
from gpu_engine.spec.schema import RunSpec


def is_meant(spec: RunSpec) -> bool:
    """Whether the run is for Slurm: its devices.hosts name it, and no host of this person is called
    so; then only a partition can mean it. Raises UserError."""
    entries = parse_all(spec.devices.hosts or ())
    if all(entry.host != SLURM for entry in entries):
        return False
    return entries[0].partition is not None or not _a_host()


def _a_host() -> bool:
    """Whether a person has a host that is called slurm."""
    config = Path.home() / ".ssh" / "config"
    lines = config.read_text(errors="replace").splitlines() if config.is_file() else []
    return SLURM in hosts.read() or any(
        SLURM in words[1:] for words in map(str.split, lines) if words[:1] in (["Host"], ["host"]))


def plan_of(spec: RunSpec, base: tuple[str, RunSpec] | None = None, *, in_sweep: bool = False
            ) -> LaunchPlan:
    """The plan of a run for Slurm, made without asking it. Which devices the ranks get is known
    when they start. `in_sweep`: it is compared with others. Raises SpecError."""
    if problems := without_effect.no_room(spec, without_effect.SLURM):
        raise SpecError(problems)
    job, checked = script.asked_of(spec), script.placed(spec)
    plan = resolve(checked, python=sys.executable, base=base)  # each node finds its own
    kind = "CPU slot" if script.on_cpu(spec) else "GPU"
    told = [units.counted(job.nodes, "node"), f"{units.counted(job.per_node, kind)} each"] \
        if job.nodes > 1 else [units.counted(job.per_node, kind)]
    asked = replace(spec, parallel=replace(spec.parallel, mode=checked.spec.parallel.mode))
    return replace(plan, warnings=without_effect.told(asked, without_effect.SLURM,
                                                      in_sweep=in_sweep),
                   spec=spec, ranks=(), processes=(), lines=(engine_line(spec, base),),
                   chosen=f"Slurm chooses: {', '.join([*told, *job.options])}")


def can_be_asked() -> bool:
    """Whether Slurm is on this machine, and devices.hosts=slurm means it. Raises UserError."""
    return shutil.which("sbatch") is not None and not _a_host()


def script_of(spec: RunSpec, run: str | None = None) -> str:
    """The batch script for a run from this folder. `run`: its folder; None: the job makes it.
    Raises as `batch_script`."""
    return script.batch_script(spec, working_folder(), str(paths.home()), run)


def for_slurm(spec: RunSpec, per_node: int | None, options: Mapping[str, str]) -> RunSpec:
    """A spec for any machine as one for Slurm: its devices are counted and no longer named."""
    devices, p = spec.devices, spec.parallel
    count = per_node or (len(devices.ids) if devices.ids else devices.pick or 1)
    slots = ":" + ",".join(f"cpu:{i}" for i in range(count)) if script.on_cpu(spec) else ""
    return replace(
        spec, devices=replace(devices, ids=None, pick=None if slots else count,
                              hosts=[f"{SLURM}{slots}"]),
        parallel=replace(p, nodes=modes.get(p.mode).nodes(p.nodes)),
        run=replace(spec.run, sbatch={**spec.run.sbatch, **options}))
