"""The presets there are, to load one."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from gpu_engine import presets
from gpu_engine.clean import clean
from gpu_engine.presets import Preset
from gpu_engine.spec import MODE_NAMES
from gpu_panel.background import in_thread

Listed = Preset | tuple[Path, str]


class PresetsScreen(ModalScreen[str | None]):
    """Answers with the name to load, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "close", "close")]

    def compose(self) -> ComposeResult:
        box = OptionList(id="presets", classes="sheet", markup=False)
        box.border_title = "Presets"
        box.border_subtitle = "enter load · esc cancel"
        yield box

    async def on_mount(self) -> None:
        self.run_worker(self._read(), exit_on_error=False)

    async def _read(self) -> None:
        from gpu_panel.errors import guard

        with guard(self.app):
            found = await in_thread(_read_all, name="panel-presets")
            box = self.query_one("#presets", OptionList)
            if not found:
                box.border_subtitle = "there are none · esc cancel"
            room = box.scrollable_content_region.width - 6
            for preset, about in found:
                if isinstance(preset, Preset):
                    box.add_option(Option(_shown(preset, clean(about, room)), id=preset.name))
                else:
                    path, why = preset
                    box.add_option(Option(_broken(path, why), disabled=True))
            box.highlighted = next((i for i, o in enumerate(box.options) if not o.disabled), None)
            box.focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss(event.option_id)

    def action_close(self) -> None:
        self.dismiss(None)


def _read_all() -> list[tuple[Listed, str]]:
    return [(p, _about(p.path) if isinstance(p, Preset) else "") for p in presets.all_presets()]


def _about(path: Path) -> str:
    """The comment that a preset begins with."""
    said: list[str] = []
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if not line.startswith("#"):
                    break
                said.append(line.lstrip("# ").strip())
    except OSError:
        return ""
    sentence = " ".join(said)
    return sentence.partition(". ")[0].rstrip(".:,;")


def _shown(preset: Preset, about: str) -> Content:
    mode = MODE_NAMES.get(preset.spec.parallel.mode, preset.spec.parallel.mode)
    whose = "shipped" if preset.shipped else "your own"
    return Content.assemble(
        (f"{clean(preset.name):<18} ", "bold"), f"{mode:<13} ", (f"{whose}\n", "$text-muted"),
        f"  {clean(about)}\n" if about else "",
        (f"  {clean(str(preset.path))}", "$text-muted"))


def _broken(path: Path, why: str) -> Content:
    return Content.assemble(
        (f"{clean(path.stem):<18} ", "bold"), ("✗ can't be read\n", "$text-error"),
        f"  {clean(why)}\n", (f"  {clean(str(path))}", "$text-muted"))
