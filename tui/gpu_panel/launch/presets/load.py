"""Loading another preset into the form, from the list of them."""

from __future__ import annotations

from typing import Any

from textual.app import App

from gpu_engine.spec import presets
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import Confirm
from gpu_panel.launch.draft import Draft


async def ask_and_load(app: App[Any], draft: Draft, name: str) -> Draft | None:
    """The draft of the preset `name`; None where the person would rather keep what was changed in
    `draft`. To be called from a worker. Raises UserError where the preset can't be read."""
    preset = await in_thread(lambda: presets.load(name), name="panel-preset")
    if draft.changed and not await app.push_screen_wait(Confirm(
            "Load another preset", f"What you changed in {draft.title} is not saved. "
            f"Loading {name} drops it.", yes=f"Load {name}", no="Keep editing")):
        return None
    return Draft(preset)
