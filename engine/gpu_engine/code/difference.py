"""How the code of a run differs from another's, or from what its folder has now."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from gpu_engine.code import snapshot, store
from gpu_engine.code.snapshot import Snapshot
from gpu_engine.common import units
from gpu_engine.common.errors import SpecError, UserError, telling
from gpu_engine.common.programs import ask_git
from gpu_engine.runs import environment, leftovers, trust
from gpu_engine.runs.folder import Run

_MOST = 1 << 20
"""Bytes of all files that are compared line by line, before and after."""
_DIFF = ("--git-dir=/dev/null", "diff", "--no-index", "--no-prefix", "--no-color", "--no-ext-diff",
         "--no-textconv", "--no-renames", "--text", "a", "b")
"""By no configuration and no attributes of a folder."""


def of_run(run: Run) -> Snapshot:
    """The code that the last attempt of a run was started with. Raises UserError if it is not
    kept."""
    name = environment.read(run.path).code
    if name is None:
        raise UserError(f"no code of run {run.id} is kept: it was started outside of a git "
                        "repository, with a batch script, or with a task that is installed")
    if (found := store.load(name)) is not None:
        return found
    raise UserError(f"the code of run {run.id} is not kept any more: it is for a day, 2 GiB in "
                    "all, and longer for runs with gpu-engine note --keep")


def not_compared(run: Run) -> str | None:
    """That hosts ran files of their own, for people; None: they ran this code."""
    plan = run.plan()
    if plan is None or not (run.path / leftovers.HOSTS).is_dir() or plan.spec.run.sync != "none":
        return None
    hosts = ", ".join(dict.fromkeys(r.host for r in plan.ranks if r.host is not None))
    return f"run {run.id} had the files that {hosts} had already (run.sync=none): they are not " \
        "compared, only those of the folder here"


def now(run: Run) -> Snapshot:
    """What there is now in the folder that the code of a run was read from. Raises UserError."""
    trust.require_ours(run.path)
    try:
        return snapshot.take(Path(environment.read(run.path).root or ""))
    except SpecError as err:
        raise UserError(err.problems[0].message) from None


def between(before: Snapshot, after: Snapshot) -> tuple[bytes, list[str]]:
    """The patch that makes `after` of `before`, for `git apply`; and a line for each file that
    differs and is not in it. Raises UserError."""
    a, b = ({entry.path: (entry, data) for entry, data in zip(s.entries, s.contents, strict=True)}
            for s in (before, after))
    room, chosen, left = _MOST, list[bytes](), list[str]()
    for path in sorted(p for p in {*a, *b} if a.get(p) != b.get(p)):
        data = b"".join(side[path][1] for side in (a, b) if path in side)
        if b"\0" not in data and len(data) <= room:
            room -= len(data)
            chosen.append(path)
        else:
            why = "no text" if b"\0" in data else f"too large: {units.size(len(data))}"
            left.append(f"{os.fsdecode(path)} differs, and is {why}")
    with telling("the code can't be compared"), tempfile.TemporaryDirectory() as folder:
        for name, side in (("a", a), ("b", b)):
            files = [side[path] for path in chosen if path in side]
            store.fill(Path(folder, name), [e for e, _ in files], [data for _, data in files])
        done = ask_git(folder, *_DIFF, timeout=60.0)
    if done.returncode > 1:
        raise UserError(f"git does not compare: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout, left
