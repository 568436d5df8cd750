"""The list of presets, to load or delete one."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from gpu_engine.common.clean import clean
from gpu_engine.spec import modes, presets
from gpu_engine.spec.presets import Preset
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import Confirm

Listed = Preset | tuple[Path, str]
"""A preset, or the path of one that can't be read and the reason."""
_KEYS = "enter load · x delete · esc cancel"


class PresetsScreen(ModalScreen[str | None]):
    """Returns the name of the preset to load, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "close", "close"),
                                             Binding("x,delete", "delete", "delete")]

    def __init__(self) -> None:
        super().__init__()
        self._own: set[str] = set()
        """Names of the presets that can be deleted."""

    def compose(self) -> ComposeResult:
        box = OptionList(id="presets", classes="sheet", markup=False)
        box.border_title = "Presets"
        box.border_subtitle = _KEYS
        yield box

    async def on_mount(self) -> None:
        self.run_worker(self._read(), exit_on_error=False)

    async def _read(self) -> None:
        from gpu_panel.common.errors import guard

        with guard(self.app):
            found = await in_thread(_read_all, name="panel-presets")
            box = self.query_one("#presets", OptionList)
            box.clear_options()
            self._own = {p.name for p, _ in found if isinstance(p, Preset) and not p.shipped}
            if not found:
                box.border_subtitle = "there are no presets · esc cancel"
            room = box.scrollable_content_region.width - 6
            for preset, about in found:
                if isinstance(preset, Preset):
                    box.add_option(Option(_shown(preset, clean(about, room)), id=preset.name))
                else:
                    path, why = preset
                    box.add_option(Option(_broken(path, why), disabled=True))
            box.highlighted = next((i for i, o in enumerate(box.options) if not o.disabled), None)
            box.focus()

    @work(exit_on_error=False, exclusive=True)
    async def action_delete(self) -> None:
        """Ask the person, then delete the preset under the cursor, if it is their own."""
        from gpu_panel.common.errors import guard

        box = self.query_one("#presets", OptionList)
        at = box.highlighted
        name = box.get_option_at_index(at).id if at is not None else None
        if name is None:
            return
        if name not in self._own:
            self.notify(f"{name} ships with gpu-panel and can't be deleted; x deletes presets of "
                        "your own", severity="warning", markup=False)
            return
        back = f" After that, the {name} that ships with gpu-panel is used again." \
            if presets.ships(name) else ""
        with guard(self.app):
            if await self.app.push_screen_wait(Confirm(
                    f"Delete preset {name}",
                    f"Deletes {presets.own_folder() / name}.toml.{back} This can't be undone.",
                    yes="Delete it")):
                await in_thread(lambda: presets.remove(name), name="panel-preset")
                await self._read()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss(event.option_id)

    def action_close(self) -> None:
        self.dismiss(None)


def _read_all() -> list[tuple[Listed, str]]:
    return [(p, _about(p.path) if isinstance(p, Preset) else "") for p in presets.all_presets()]


def _about(path: Path) -> str:
    """The first sentence of the comment at the start of a preset."""
    comment: list[str] = []
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if not line.startswith("#"):
                    break
                comment.append(line.lstrip("# ").strip())
    except OSError:
        return ""
    return " ".join(comment).partition(". ")[0].rstrip(".:,;")


def _shown(preset: Preset, about: str) -> Content:
    mode = modes.get(preset.spec.parallel.mode).label
    over = ", used instead of the shipped one" if presets.ships(preset.name) else ""
    whose = "shipped" if preset.shipped else f"your own{over}"
    return Content.assemble(
        (f"{clean(preset.name):<18} ", "bold"), f"{mode:<13} ", (f"{whose}\n", "$text-muted"),
        f"  {clean(about)}\n" if about else "",
        (f"  {clean(str(preset.path))}", "$text-muted"))


def _broken(path: Path, why: str) -> Content:
    return Content.assemble(
        (f"{clean(path.stem):<18} ", "bold"), ("✗ can't be read\n", "$text-error"),
        f"  {clean(why)}\n", (f"  {clean(str(path))}", "$text-muted"))
