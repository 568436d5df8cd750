"""Removing runs from the screen, after a question that names their size."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from textual.app import App

from gpu_engine.common.errors import UserError
from gpu_engine.runs import folder
from gpu_panel.commands import same
from gpu_panel.common import units
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import Confirm, ask_count

if TYPE_CHECKING:
    from gpu_engine.runs.folder import Run

KEEP = 20
"""The proposed number of runs that pruning keeps."""
_NAMED = 12
"""The most runs that the question before pruning names."""


async def ask_and_remove(app: App[Any], run: Run, name: str) -> bool:
    """Ask the person, then move `run` into the bin. Returns whether it was moved. Call this
    from a worker. Raises UserError if it can't be moved."""
    size = await in_thread(run.size, name="panel-size")
    if not await app.push_screen_wait(Confirm(
            f"Remove run {run.id}", f"{name}: {into_bin(size, run.id)}",
            yes="Remove it")):
        return False
    await in_thread(lambda: remove_all([run]), name="panel-remove")
    same.done(app, f"Run {run.id} is in the bin", [["runs", "rm", run.id]])
    return True


async def ask_and_prune(app: App[Any]) -> bool:
    """Ask how many of the newest finished runs to keep, then remove the others. Returns whether any
    was. Call this from a worker. Raises UserError, naming every run that could not be
    removed."""
    ended = await in_thread(_ended, name="panel-ended")
    if not ended:
        app.notify("No run has ended yet", severity="warning")
        return False
    total = units.size(sum(size for _, size in ended))
    keep = await ask_count(
        app, "Keep the newest runs", min(KEEP, len(ended)), len(ended),
        f"How many of the newest finished runs ({total} in all) do you want to keep?")
    if keep is None:
        return False
    going = ended[keep:]
    if not going:
        app.notify("Nothing to remove: all finished runs are kept")
        return False
    size = sum(size for _, size in going)
    names = ", ".join(run.id for run, _ in going[:_NAMED])
    names += f" and {len(going) - _NAMED} more" if len(going) > _NAMED else ""
    if not await app.push_screen_wait(Confirm(
            f"Remove {len(going)} run{'s' * (len(going) > 1)}",
            f"{names}: {into_bin(size, 'ID')}",
            yes="Remove them")):
        return False
    await in_thread(lambda: remove_all(run for run, _ in going), name="panel-prune")
    same.done(app, f"{len(going)} runs are in the bin", [["runs", "prune", "--keep", str(keep)]])
    return True


def into_bin(size: int, run: str) -> str:
    """What becomes of so many bytes, and when the disk has them again. `run`: whose id brings it
    back."""
    room = units.size(size)
    return f"{room} of logs and checkpoints go into the bin. Within a week, gpu-engine runs " \
           f"restore {run} brings them back; after that the disk has its {room} again, or now " \
           "by gpu-engine runs empty."


def _ended() -> list[tuple[Run, int]]:
    """The finished runs, newest first, with their sizes in bytes."""
    return [(run, run.size()) for run in folder.all_runs() if run.state().state in folder.FINAL]


def remove_all(going: Iterable[Run]) -> None:
    """Move these runs into the bin. Raises UserError at the end, naming every run that could not be
    removed."""
    from gpu_engine.remote.run.removal import Removal

    trouble: list[str] = []
    with Removal(for_good=False) as removal:
        for run in going:
            try:
                outcome = removal.remove(run)
                trouble += [f"run {run.id} stays, as on {text}" for text in outcome.stays]
            except (UserError, OSError) as err:
                trouble.append(str(err))
    if trouble:
        raise UserError("\n".join(trouble))
