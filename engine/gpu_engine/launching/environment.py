"""What a run is started in, looked up once the run is on its way."""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gpu_engine.code.submitted import Kept, keep
from gpu_engine.common.errors import UserError
from gpu_engine.common.programs import git, version
from gpu_engine.devices.records import Inventory
from gpu_engine.launching import torch_build
from gpu_engine.plan.records import LaunchPlan
from gpu_engine.runs.environment import Environment, write
from gpu_engine.runs.folder import Run

_TIMEOUT = 2.0
"""Seconds after which git is not waited for."""


def note(run: Run, plan: LaunchPlan, inventory: Inventory, kept: Kept | None = None) -> None:
    """Keep in the run folder what the run is started in, and its code as it is now, unless that is
    `kept` already. Nothing depends on it, so a full disk or a folder that has been deleted is no
    error."""
    folder = Path(run.cwd())
    with suppress(OSError):
        found = describe(plan, inventory, folder)
        with suppress(UserError):
            if plan.part_of is None:  # else it is kept where the whole run is
                kept = kept or keep(plan.spec, folder, _TIMEOUT)
                found = replace(found, code=kept.name, root=kept.root)
        write(run.path, found)


def describe(plan: LaunchPlan, inventory: Inventory, folder: Path) -> Environment:
    """What `plan` is started in, in `folder`."""
    from gpu_engine.interpreters import choose, inspection

    hosts = list(dict.fromkeys(r.host for r in plan.ranks if r.host is not None))
    # Hosts that are sent nothing run files of their own, of which this commit says nothing.
    theirs = hosts and plan.spec.run.sync == "none"
    commit, changed = (None, None) if theirs else git_state(folder)
    if hosts:  # theirs is not known here
        return Environment(version(), machine=", ".join(hosts), folder=str(folder),
                           commit=commit, changed_files=changed)
    command = plan.spec.task.command
    if command:
        python = torch_build.interpreter_of(command, folder)
    elif plan.interpreter is not None:
        python = plan.interpreter.path
    else:
        taken = choose.of_spec(plan.spec, folder)
        python = taken and taken.python
    build = inspection.inspect(python).build if python else None
    used = {d.id for r in plan.ranks for d in r.devices}
    return Environment(version(), python, build.version if build else None, inventory.driver,
                       socket.gethostname(), inventory.named(among=used) or None, str(folder),
                       commit, changed)


def git_state(folder: Path) -> tuple[str | None, int | None]:
    """The commit that is checked out in `folder`, and how many files differ from it; both None
    where that is no git repository or git does not answer."""
    commit = git(folder, "rev-parse", "--verify", "HEAD", timeout=_TIMEOUT)
    if commit is None:
        return None, None
    changed = git(folder, "status", "--porcelain", "--untracked-files=no", timeout=_TIMEOUT)
    return commit.strip(), None if changed is None else len(changed.splitlines())
