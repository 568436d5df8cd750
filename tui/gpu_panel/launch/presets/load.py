"""Loading another preset, or a run's settings, into the form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from textual.app import App

from gpu_engine.runs import attempts
from gpu_engine.spec import presets
from gpu_panel.common.background import in_thread
from gpu_panel.common.errors import show
from gpu_panel.launch import saved_form
from gpu_panel.launch.draft import Draft

if TYPE_CHECKING:
    from gpu_engine.runs.folder import Run


async def of_preset(name: str) -> Draft:
    """The draft of the preset `name`. Raises UserError if it can't be read."""
    return Draft(await in_thread(lambda: presets.load(name), name="panel-preset"))


async def of_earlier(app: App[Any]) -> Draft | None:
    """The draft of the unsaved changes of an earlier form; None if they can't be read: the person
    is told then."""
    loaded, trouble = await in_thread(lambda: saved_form.read(saved_form.earlier_path()),
                                      name="panel-preset")
    if trouble is not None:
        show(app, trouble)
    return loaded


async def of_run(run: Run) -> Draft:
    """The draft of the settings of `run`. Raises UserError if they can't be read."""
    return await in_thread(lambda: Draft.of_run(run.id, attempts.read_spec(run)),
                           name="panel-again")
