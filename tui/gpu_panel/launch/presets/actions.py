"""The launch screen's dealings with presets: read the first, load another, save."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual import work

from gpu_engine.common.errors import SpecError, UserError
from gpu_engine.spec import presets
from gpu_engine.spec.presets import Preset
from gpu_engine.spec.read import from_dict
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import AskName, Confirm
from gpu_panel.common.errors import guard, show
from gpu_panel.launch.draft import Draft

if TYPE_CHECKING:
    from gpu_panel.launch.screen import LaunchScreen


class PresetActions:
    """Mixed into the launch screen."""

    def read_first_preset(self: LaunchScreen) -> tuple[Draft, UserError | None]:
        """The draft that the panel opens with; what can't be read leaves the defaults."""
        name = self.wanted_preset
        try:
            if self.command is not None:
                draft = Draft.of_command(self.command, presets.load(name) if name else None)
            else:
                draft = Draft(presets.load(name or presets.DEFAULT))
        except UserError as err:
            return (Draft() if self.command is None else Draft.of_command(self.command)), err
        try:
            for assignment in self.sets:
                draft.assign(assignment)
            from_dict(draft.data)
        except SpecError as err:
            return Draft(draft.preset), err
        return draft, None

    def tell(self: LaunchScreen, error: UserError) -> None:
        show(self.app, error)

    # --- loading -------------------------------------------------------------------------------

    @work(exit_on_error=False, group="presets", exclusive=True)
    async def action_presets(self: LaunchScreen) -> None:
        from gpu_panel.launch.presets.chooser import PresetsScreen

        with guard(self.app):
            name = await self.app.push_screen_wait(PresetsScreen())
            await self._forget_deleted()
            if name is None:
                return
            preset = await in_thread(lambda: presets.load(name), name="panel-preset")
            if self.draft.changed:
                dropped = await self.app.push_screen_wait(Confirm(
                    "Load another preset", f"What you changed in {self.draft.title} is not saved. "
                    f"Loading {name} drops it.", yes=f"Load {name}", no="Keep editing"))
                if not dropped:
                    return
            await self.take_draft(Draft(preset))

    async def _forget_deleted(self: LaunchScreen) -> None:
        """The preset in the form may be deleted now: the line must not build on it."""
        preset = self.draft.preset
        if preset is not None and not await in_thread(preset.path.exists, name="panel-preset"):
            self.draft.preset = None
            self.form.adapt(self.draft)
            self.review_now()

    # --- saving --------------------------------------------------------------------------------

    @work(exit_on_error=False, group="presets", exclusive=True)
    async def action_save(self: LaunchScreen) -> None:
        with guard(self.app):
            spec = self.draft.to_save(self.devices.inventory)
            before = self.draft.preset
            suggested = before.name if before and "/" not in before.name else spec.name
            asked = spec.devices.ids
            held = f"the {spec.devices.pick} freest at launch" if spec.devices.pick else \
                ", ".join(asked or ["none"])
            name: str | None = suggested.removesuffix(".toml")
            while True:
                name = await self.app.push_screen_wait(AskName(
                    "Save preset", name, f"Kept in {presets.own_folder()}\nDevices: {held}",
                    wrong=presets.name_problem, hint=_what_is_there))
                if name is None:
                    return
                question = _what_is_there(name)
                if not question or await self.app.push_screen_wait(Confirm(
                        "Save preset", question, yes="Overwrite"
                        if (presets.own_folder() / f"{name}.toml").exists() else "Save it",
                        no="Another name")):
                    break

            def write() -> Preset:
                presets.save(name, spec)
                return presets.load(name)

            saved = await in_thread(write, name="panel-save")
            self.draft.saved(saved)
            self.form.adapt(self.draft)
            self.notify(f"Saved in {saved.path}", title="Preset", markup=False)
            self.review_now()


def _what_is_there(name: str) -> str:
    """What saving under this name would do to a preset that has it; "": there is none."""
    own = presets.own_folder() / f"{name}.toml"
    if own.exists():
        return f"{own} is there already. Comments in it stay."
    if presets.ships(name):
        return (f"{name} ships with gpu-panel. Yours will stand in its place wherever {name} is "
                "asked for; deleting yours (ctrl+o, x) brings it back.")
    return ""
