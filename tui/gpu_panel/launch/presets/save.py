"""Saving what the form says as a preset, after asking for its name."""

from __future__ import annotations

from typing import Any

from textual.app import App

from gpu_engine.devices.records import Inventory
from gpu_engine.spec import presets
from gpu_engine.spec.presets import Preset
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import AskName, Confirm
from gpu_panel.launch.draft import Draft


async def ask_and_save(app: App[Any], draft: Draft, inventory: Inventory | None) -> Preset | None:
    """Save the draft, devices by what identifies them in `inventory`; None: the person has thought
    better of it. To be called from a worker. Raises SpecError where a value does not fit, OSError
    where the preset can't be written."""
    spec = draft.to_save(inventory)
    before = draft.preset
    name: str | None = before.name if before and "/" not in before.name else spec.name
    name = name.removesuffix(".toml")
    devices = f"the {spec.devices.pick} freest at launch" if spec.devices.pick else \
        ", ".join(spec.devices.ids or ["none"])
    while True:
        name = await app.push_screen_wait(AskName(
            "Save preset", name, f"Kept in {presets.own_folder()}\nDevices: {devices}",
            wrong=presets.name_problem, hint=_what_is_there))
        if name is None:
            return None
        question = _what_is_there(name)
        if not question or await app.push_screen_wait(Confirm(
                "Save preset", question, yes="Overwrite"
                if (presets.own_folder() / f"{name}.toml").exists() else "Save it",
                no="Another name")):
            break

    def write() -> Preset:
        presets.save(name, spec)
        return presets.load(name)

    saved = await in_thread(write, name="panel-save")
    app.notify(f"Saved in {saved.path}", title="Preset", markup=False)
    return saved


def _what_is_there(name: str) -> str:
    """What saving under this name would do to a preset that has it; "": there is none."""
    own = presets.own_folder() / f"{name}.toml"
    if own.exists():
        return f"{own} is there already. Comments in it stay."
    if presets.ships(name):
        return (f"{name} ships with gpu-panel. Yours will stand in its place wherever {name} is "
                "asked for; deleting yours (ctrl+o, x) brings it back.")
    return ""
