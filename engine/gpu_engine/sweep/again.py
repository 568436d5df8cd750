"""Stopping all members of a sweep, and trying those again that have failed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpu_engine.common.errors import UserError
from gpu_engine.launching.launcher import discover_for
from gpu_engine.launching.lookup import stop as stop_run
from gpu_engine.queue import serve, submit
from gpu_engine.queue.submit import When
from gpu_engine.runs import attempts, waiting
from gpu_engine.runs.folder import Run
from gpu_engine.runs.sweep import Member
from gpu_engine.spec.read import from_dict
from gpu_engine.spec.schema import RunSpec
from gpu_engine.sweep.group import Group


@dataclass(frozen=True, slots=True)
class Done:
    """What was done to a sweep's members."""

    runs: tuple[Run, ...]
    trouble: tuple[str, ...]
    """What went wrong with others, for people."""


def stop(found: Group, *, now: bool = False) -> Done:
    """Take the waiting members out of the line, and then ask those that run to stop; `now`: kill
    their ranks. Members that have ended are left alone."""
    live = [run for run, _ in found.members if run.state().live]
    waits = [run for run in live if waiting.read(run.path) is not None]
    done, trouble = list[Run](), list[str]()
    # Waiting ones first, the last of the line before the others: none of them starts on a device
    # that another has just left.
    for run in [*reversed(waits), *(run for run in live if run not in waits)]:
        try:
            stop_run(run, now=now)
            done.append(run)
        except (UserError, OSError) as err:
            if run.state().live:
                trouble.append(str(err))
    return Done(tuple(done), tuple(trouble))


def retry(found: Group) -> Done:
    """Put the members that have failed or are lost into the line for another attempt, which goes on
    from their last checkpoint if they have one. Raises UserError if none has failed."""
    failed = [(run, m) for run, m in found.members if run.state().state in ("failed", "lost")]
    if not failed:
        raise UserError(f"no run of sweep {found.id} has failed")
    done, trouble = list[Run](), list[str]()
    inventory = None
    for run, member in failed:
        try:
            spec = _as_submitted(from_dict(attempts.read_spec(run)), member)
            inventory = inventory or discover_for(spec)
            submit.submit_again(run, spec, When(), inventory, found.id)
            done.append(run)
        except (UserError, OSError) as err:
            trouble.append(f"run {run.id} is not tried again: {err}")
    if done:
        serve.ensure()
    return Done(tuple(done), tuple(trouble))


def _as_submitted(spec: RunSpec, member: Member) -> RunSpec:
    """The spec with devices.pick, which became devices.ids when the run started."""
    if member.pick is None:
        return spec
    return replace(spec, devices=replace(spec.devices, ids=None, pick=member.pick,
                                         free_gib=member.free_gib))
