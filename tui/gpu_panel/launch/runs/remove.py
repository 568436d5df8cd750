"""Deleting run folders from the screen, after a question that says how much that is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from textual.app import App

from gpu_engine.common.errors import UserError
from gpu_engine.runs import folder
from gpu_engine.runs.folder import Run
from gpu_panel.common import units
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import AskCount, Confirm

KEEP = 20
"""Runs that pruning keeps unless told otherwise."""
_NAMED = 12
"""Runs whose names the question before pruning lists."""


async def ask_and_remove(app: App[Any], run: Run, name: str) -> bool:
    """Ask whether the folder of `run` is to go, and delete it. Whether it is gone. To be called
    from a worker. Raises UserError or OSError where it can't be deleted."""
    size = await in_thread(run.size, name="panel-size")
    if not await app.push_screen_wait(Confirm(
            f"Remove run {run.id}", f"{name}: deletes {run.path} with logs and "
            f"checkpoints, {units.size(size)}. This can't be undone.", yes="Delete it")):
        return False
    await in_thread(run.remove, name="panel-remove")
    return True


async def ask_and_prune(app: App[Any]) -> bool:
    """Ask how many of the newest runs that have ended are to stay, and delete the others. Whether
    any is gone. To be called from a worker. Raises UserError with all that could not be deleted."""
    ended = await in_thread(_ended, name="panel-ended")
    if not ended:
        app.notify("No run has ended yet", severity="warning")
        return False
    total = units.size(sum(size for _, size in ended))
    keep = await app.push_screen_wait(AskCount(
        "Keep the newest runs", min(KEEP, len(ended)), len(ended),
        f"Of the runs that have ended ({total} in all), how many of the newest stay?"))
    if keep is None:
        return False
    going = ended[keep:]
    if not going:
        app.notify("All of them stay")
        return False
    size = units.size(sum(size for _, size in going))
    names = ", ".join(run.id for run, _ in going[:_NAMED])
    names += f" and {len(going) - _NAMED} more" if len(going) > _NAMED else ""
    if not await app.push_screen_wait(Confirm(
            f"Remove {len(going)} run{'s' * (len(going) > 1)}",
            f"Deletes {size} of logs and checkpoints: {names}. This can't be undone.",
            yes="Delete them")):
        return False
    await in_thread(lambda: _remove_all(run for run, _ in going), name="panel-prune")
    return True


def _ended() -> list[tuple[Run, int]]:
    """Runs that have ended, newest first, with their bytes on disk."""
    return [(run, run.size()) for run in folder.all_runs() if run.state().state in folder.FINAL]


def _remove_all(going: Iterable[Run]) -> None:
    """Raises UserError with all that could not be removed, after removing the others."""
    trouble: list[str] = []
    for run in going:
        try:
            run.remove()
        except (UserError, OSError) as err:
            trouble.append(str(err))
    if trouble:
        raise UserError("\n".join(trouble))
