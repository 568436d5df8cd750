"""The code of a run as it was at submission or at its start: the commit and all changes that were
not committed.

The files that git tracks or does not ignore are copied once for all runs with the same code. If
nothing has changed when the turn of one that waits comes, it runs where it was submitted. If
something has, it runs in that copy, in which links stand for what git ignores there (data, caches).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from gpu_engine.code import snapshot, store
from gpu_engine.common.errors import SpecError, UserError
from gpu_engine.common.programs import git
from gpu_engine.runs.environment import Environment
from gpu_engine.runs.folder import Run
from gpu_engine.runs.waiting import Entry
from gpu_engine.spec.schema import RunSpec

_TIMEOUT = 10.0
"""Seconds after which git is not waited for."""
_MOST_LINKS = 1000


@dataclass(frozen=True, slots=True)
class Kept:
    """Code that was kept."""

    name: str | None = None
    """None: it was not."""
    root: str | None = None
    """The repository that it was read from."""
    doubt: str | None = None
    """Why it was not kept, for people; None also where no file of a person's is run."""


def keep(spec: RunSpec, folder: Path, timeout: float = 60.0) -> Kept:
    """Keep the code of a run that is submitted or started in `folder`, if git says within `timeout`
    seconds what that is. Raises UserError if it can't be written."""
    use = spec.task.use
    if use is not None and not use.partition(":")[0].endswith(".py"):
        return Kept()  # an installed module
    top = git(folder, "rev-parse", "--show-toplevel", timeout=_TIMEOUT)
    if not top:
        return Kept(doubt=f"{folder} is in no git repository: the run uses its files as they are "
                          "when its turn comes")
    root = Path(top.rstrip("\n"))
    try:
        taken = snapshot.take(root, timeout)
    except SpecError as err:
        return Kept(doubt=f"the code is not kept: {err.problems[0].message}. The run uses its "
                          "files as they are when its turn comes")
    store.save(taken.listed, taken.contents)
    return Kept(taken.name, str(root))


def place_of(run: Run, spec: RunSpec, entry: Entry | Environment) -> tuple[Path, RunSpec]:
    """The folder to run in and the spec to run there: where it was submitted, or in the copy of its
    code if that has changed since. Raises UserError if the copy is gone or can't be linked."""
    folder = Path(entry.folder or run.cwd())
    if entry.code is None or entry.root is None:
        return folder, spec
    root = Path(entry.root)
    try:
        if snapshot.take(root).name == entry.code:
            return folder, spec
    except SpecError:
        pass  # it has grown, or is no repository any more
    place, there = store.place_of(entry.code)
    if not there:
        raise UserError(f"the code in {root} has changed since the run was submitted, and the copy "
                        "that was kept of it is gone or changed; submit it again")
    _link_ignored(root, place)
    return place / os.path.relpath(folder, root), _moved(spec, root, place)


def _moved(spec: RunSpec, root: Path, place: Path) -> RunSpec:
    """The spec with the copies of files that it names by absolute paths in the repository."""
    def there(word: str) -> str:
        path, colon, rest = word.partition(":")
        inner = Path(path)
        if not inner.is_absolute() or root not in inner.parents:
            return word
        copy = place / inner.relative_to(root)
        return f"{copy}{colon}{rest}" if copy.is_file() and not copy.is_symlink() else word

    task = spec.task
    if task.command is not None:
        return replace(spec, task=replace(task, command=[there(w) for w in task.command]))
    return replace(spec, task=replace(task, use=there(task.use))) if task.use else spec


def _link_ignored(root: Path, place: Path) -> None:
    """Make links in the copy for what git ignores in the repository: data is not copied, and a
    script finds it where it was."""
    listed = git(root, "ls-files", "-z", "--others", "--ignored", "--exclude-standard",
                 "--directory", timeout=_TIMEOUT)
    if listed is None:
        return
    for name in listed.split("\0")[:_MOST_LINKS]:
        name = name.rstrip("/")
        target, link = root / name, place / name
        if not name or "__pycache__" in target.parts or os.path.lexists(link) \
                or not target.exists() or not link.parent.is_dir():
            continue
        try:
            link.symlink_to(target)
        except FileExistsError:
            continue
        except OSError as err:
            raise UserError(f"{link}: can't be linked: {err.strerror}") from None
