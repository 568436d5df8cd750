"""Loading another preset into the form."""

from __future__ import annotations

from typing import Any

from textual.app import App

from gpu_engine.spec import presets
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import Confirm
from gpu_panel.launch.draft import Draft


async def ask_and_load(app: App[Any], draft: Draft, name: str) -> Draft | None:
    """The draft of the preset `name`; None if the person prefers to keep the changes in `draft`.
    Call this from a worker. Raises UserError if the preset can't be read."""
    preset = await in_thread(lambda: presets.load(name), name="panel-preset")
    if draft.changed and not await app.push_screen_wait(Confirm(
            "Load another preset", f"Your changes to {draft.title} are not saved. "
            f"Loading {name} discards them.", yes=f"Load {name}", no="Keep editing")):
        return None
    return Draft(preset)
