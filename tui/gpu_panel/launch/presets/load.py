"""Loading another preset, or a run's settings, into the form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from textual.app import App

from gpu_engine.runs import attempts
from gpu_engine.spec import presets
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import Confirm
from gpu_panel.common.errors import show
from gpu_panel.launch import kept
from gpu_panel.launch.draft import Draft

if TYPE_CHECKING:
    from gpu_engine.runs.folder import Run


async def ask_and_load(app: App[Any], draft: Draft, name: str) -> Draft | None:
    """The draft of the preset `name`; None if the person prefers to keep the changes in `draft`.
    Call this from a worker. Raises UserError if the preset can't be read."""
    preset = await in_thread(lambda: presets.load(name), name="panel-preset")
    return Draft(preset) if await _may_replace(app, draft, name, "Load another preset") else None


async def ask_and_load_earlier(app: App[Any], draft: Draft) -> Draft | None:
    """The draft of the unsaved changes of an earlier form; None if the person prefers to keep the
    changes in `draft`, or if they can't be read: the person is told then. Call this from a
    worker."""
    loaded, trouble = await in_thread(lambda: kept.read(kept.earlier_path()), name="panel-preset")
    if trouble is not None:
        show(app, trouble)
    if loaded is None or not await _may_replace(app, draft, "the earlier form",
                                                "Load unsaved changes"):
        return None
    return loaded


async def ask_and_load_run(app: App[Any], draft: Draft, run: Run) -> Draft | None:
    """The draft of the settings of `run`; None if the person prefers to keep the changes in
    `draft`. Call this from a worker. Raises UserError if they can't be read."""
    loaded = await in_thread(lambda: Draft.of_run(run.id, attempts.read_spec(run)),
                             name="panel-again")
    return loaded if await _may_replace(app, draft, f"run {run.id}", "Run it again") else None


async def _may_replace(app: App[Any], draft: Draft, name: str, title: str) -> bool:
    """Ask whether unsaved changes in `draft` may be discarded, if there are any."""
    return not draft.changed or bool(await app.push_screen_wait(Confirm(
        title, f"Your changes to {draft.title} are not saved. Loading {name} discards them.",
        yes=f"Load {name}", no="Keep editing")))
