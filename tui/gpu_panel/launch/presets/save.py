"""Saving the form as a preset, after asking for its name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from textual.app import App
from textual.widget import Widget
from textual.widgets import Input, Static

from gpu_engine.devices.records import Inventory
from gpu_engine.spec import presets
from gpu_engine.spec.presets import Preset
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import AskLine, Confirm
from gpu_panel.launch.draft import Draft


async def ask_and_save(app: App[Any], draft: Draft, inventory: Inventory | None) -> Preset | None:
    """Save the draft, with its devices named by what identifies them in `inventory`. Returns the
    preset, or None if the person cancels. Call this from a worker. Raises SpecError if a value is
    wrong, OSError if the preset can't be written."""
    spec = draft.to_save(inventory)
    before = draft.preset
    name: str | None = before.name if before and "/" not in before.name else spec.name
    name = name.removesuffix(".toml")
    description = before.description if before else ""
    devices = f"the {spec.devices.pick} freest at launch" if spec.devices.pick else \
        ", ".join(spec.devices.hosts or spec.devices.ids or ["none"])
    while True:
        asking = _AskBoth("Save preset", name, f"Saved in {presets.own_folder()}\nDevices: "
                          f"{devices}", description)
        name = await app.push_screen_wait(asking)
        if name is None:
            return None
        description = asking.description
        question = _effect_on_others(name)
        if not question or await app.push_screen_wait(Confirm(
                "Save preset", question, yes="Overwrite"
                if (presets.own_folder() / f"{name}.toml").exists() else "Save it",
                no="Another name")):
            break

    def write() -> Preset:
        presets.save(name, spec, description)
        return presets.load(name)

    saved = await in_thread(write, name="panel-save")
    app.notify(f"Saved in {saved.path}", title="Preset", markup=False)
    return saved


class _AskBoth(AskLine):
    """Asks for a name and a description."""

    def __init__(self, title: str, value: str, note: str, description: str) -> None:
        super().__init__(title, value, note, wrong=presets.name_problem, hint=_effect_on_others)
        self._described = Input(description, compact=True, id="description",
                                placeholder="what it is for, if you like",
                                max_length=presets.LONGEST_DESCRIPTION)

    def more(self) -> Iterable[Widget]:
        yield Static("Description", id="described")
        yield self._described

    @property
    def description(self) -> str:
        """What was typed as the description."""
        return self._described.value.strip()


def _effect_on_others(name: str) -> str:
    """What saving under this name does to a preset of the same name; empty if there is none."""
    own = presets.own_folder() / f"{name}.toml"
    if own.exists():
        return f"{own} already exists. Its comments are kept."
    if presets.ships(name):
        return (f"{name} ships with gpu-panel. Yours will be used instead; delete yours "
                "(ctrl+o, x) to get the shipped one back.")
    return ""
