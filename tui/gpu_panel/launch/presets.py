"""The list of presets, to load or delete one; and saving the form as one, also as a copy under
another name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError
from gpu_engine.devices.records import Inventory
from gpu_engine.spec import modes, presets
from gpu_engine.spec.presets import Preset
from gpu_engine.spec.write import Difference
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import LETTERS, AskLine, Confirm
from gpu_panel.common.errors import guard, guarded
from gpu_panel.launch.draft import Draft

_KEYS = "enter load · x delete one of yours · esc"


@dataclass(frozen=True, slots=True)
class _Entry:
    """A preset in the list, or one that can't be read."""

    name: str
    path: Path
    preset: Preset | None = None
    problem: str = ""
    about: str = ""
    changes: list[Difference] | None = None
    """How it differs from the shipped one that it hides; None if it hides none."""


class PresetsScreen(ModalScreen[str | None]):
    """Returns the name of the preset to load, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *LETTERS,
        Binding("escape,q", "dismiss", "close"), Binding("x,delete", "delete", "delete")]
    CHANGES: ClassVar[frozenset[str]] = frozenset({"delete"})
    _entries: dict[str, _Entry] = {}  # noqa: RUF012  replaced, never changed

    def compose(self) -> ComposeResult:
        box = OptionList(id="presets", classes="sheet", markup=False)
        box.border_title = "Presets"
        box.border_subtitle = _KEYS
        yield box

    def on_mount(self) -> None:
        self.run_worker(self._read(), exit_on_error=False)

    async def _read(self) -> None:
        """Read and list the presets, with the cursor about where it was."""
        with guard(self.app):
            found = await in_thread(lambda: list(_read_all()))
            box = self.query_one("#presets", OptionList)
            at = box.highlighted or 0
            box.clear_options()
            self._entries = {entry.name: entry for entry in found}
            if not found:
                box.border_subtitle = "there are no presets · esc cancel"
            room = box.scrollable_content_region.width - 4
            for entry in found:
                box.add_option(Option(_broken(entry), id=entry.name, disabled=True)
                               if entry.preset is None
                               else Option(_shown(entry, entry.preset, room), id=entry.name))
            able = [i for i, o in enumerate(box.options) if not o.disabled]
            box.highlighted = min(able, key=lambda i: abs(i - at), default=None)
            box.focus()

    @guarded("preset", exclusive=True)
    async def action_delete(self) -> None:
        box = self.query_one("#presets", OptionList)
        if box.highlighted is None:
            return
        name = box.get_option_at_index(box.highlighted).id or ""
        entry = self._entries[name]
        if entry.preset is None or entry.preset.shipped:
            self.notify(f"{name} ships with gpu-panel and can't be deleted; presets of your own "
                        "can be", severity="warning", markup=False)
            return
        back = f" After that, the {name} that ships with gpu-panel is used again." \
            if presets.ships(name) else ""
        if await self.app.push_screen_wait(Confirm(
                f"Delete preset {name}",
                f"Deletes {presets.own_folder() / name}.toml.{back} This can't be undone.",
                yes="Delete it")):
            try:
                await in_thread(lambda: presets.remove(name))
            finally:
                await self._read()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss(event.option_id)


def _read_all() -> Iterable[_Entry]:
    for preset in presets.all_presets():
        if not isinstance(preset, Preset):
            yield _Entry(preset[0].stem, preset[0], problem=preset[1])
            continue
        try:
            changes = presets.changes(preset)
        except UserError:  # the shipped one can't be read
            changes = None
        yield _Entry(preset.name, preset.path, preset, about=presets.about(preset),
                     changes=changes)


def _shown(entry: _Entry, preset: Preset, room: int) -> Content:
    mode = modes.get(preset.spec.parallel.mode).label
    over = ", used instead of the shipped one" if presets.ships(preset.name) else ""
    whose = "shipped" if preset.shipped else f"your own{over}"
    parts = [Content.assemble((f"{clean(preset.name):<18} ", "bold"), f"{mode:<13} ",
                              (whose, "$text-muted"))]
    if entry.about:
        parts.append(Content(f"  {clean(entry.about, room - 2)}"))
    if entry.changes is not None:
        parts.append(Content.styled(f"  {clean(_differs(entry.changes), room - 2)}",
                                    "$text-accent"))
    parts.append(Content.styled(f"  {clean(str(preset.path))}", "$text-muted"))
    return Content("\n").join(parts)


_MOST_CHANGES = 4


def _differs(changes: list[Difference]) -> str:
    """How a preset differs from the shipped one: "shipped → yours" of the first few keys."""
    if not changes:
        return "the same settings as the shipped one"
    told = [f"{c.key} {c.before or 'not set'} → {c.after or 'not set'}"
            for c in changes[:_MOST_CHANGES]]
    left = len(changes) - len(told)
    return "shipped → yours: " + " · ".join(told) + (f" · {left} more" if left else "")


def _broken(entry: _Entry) -> Content:
    return Content.assemble(
        (f"{clean(entry.name):<18} ", "bold"), ("✗ can't be read\n", "$text-error"),
        f"  {clean(entry.problem)}\n", (f"  {clean(str(entry.path))}", "$text-muted"))


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

    saved = await in_thread(write)
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
