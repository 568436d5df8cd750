"""The interpreters near by, each with its Python and its torch, to choose the one for the ranks."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from gpu_engine.common import paths
from gpu_engine.common.clean import clean
from gpu_engine.interpreters import candidates, own_torch
from gpu_engine.interpreters.ask import Seen
from gpu_engine.interpreters.candidates import Place
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import LETTERS
from gpu_panel.common.errors import guard

_AT_ONCE = 4
"""Interpreters that are asked at a time."""
_STRANGER = "belongs to another user, so it is not started to be asked"


class InterpretersScreen(ModalScreen[str | None]):
    """Returns the path of the one that was chosen, "" for the one that is found for each run, or
    None. The list is there at once; what each has is filled in as it answers."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *LETTERS, Binding("escape,q", "dismiss", "close"), Binding("space", "select", "choose")]

    def __init__(self, chosen: str) -> None:
        """`chosen`: what run.python is now; empty: nothing."""
        super().__init__()
        self._chosen = chosen
        self._places: list[Place] = []

    def compose(self) -> ComposeResult:
        box = OptionList(Option(_FOUND, id="found"), id="interpreters", classes="sheet",
                         markup=False)
        box.border_title = "Interpreters"
        box.border_subtitle = "looking … · esc"
        yield box

    def on_mount(self) -> None:
        self._box.focus()
        self.run_worker(self._find(), exit_on_error=False)

    @property
    def _box(self) -> OptionList:
        return self.query_one(OptionList)

    async def _find(self) -> None:
        with guard(self.app):
            folder = Path(paths.here())
            self._places = await in_thread(
                lambda: [*candidates.around(folder, os.environ), *own_torch.made()],
                name="panel-interpreters")
            box = self._box
            box.add_options(Option(_line(p, None), id=f"o{i}")
                            for i, p in enumerate(self._places))
            known = [p.path for p in self._places]
            box.highlighted = known.index(self._chosen) + 1 if self._chosen in known else 0
            gate = asyncio.Semaphore(_AT_ONCE)
            await asyncio.gather(*(self._ask(gate, i) for i in range(len(self._places))))
            box.border_subtitle = "enter choose · esc"

    async def _ask(self, gate: asyncio.Semaphore, number: int) -> None:
        place = self._places[number]
        if place.stranger:
            return
        async with gate:
            seen = await in_thread(lambda: candidates.inspect(place), name="panel-interpreter")
        if self.is_attached:
            self._box.replace_option_prompt(f"o{number}", _line(place, seen))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        name = event.option_id or ""
        self.dismiss("" if name == "found" else self._places[int(name[1:])].path)

    def action_select(self) -> None:
        self._box.action_select()


_FOUND = Content.assemble(("found for each run\n", "bold"), (
    "  the first with torch of $VIRTUAL_ENV, $CONDA_PREFIX, .venv upward, PATH, our own",
    "$text-muted"))


def _line(place: Place, seen: Seen | None) -> Content:
    """One interpreter, in two lines: its path, and what it has. None: it has not answered yet."""
    said = _STRANGER if place.stranger else "…" if seen is None else clean(seen.sentence())
    has = seen is not None and seen.has_torch
    return Content.assemble((f"{clean(_short(place.path))}\n", "bold" if has else ""),
                            (f"  {said}", "" if has else "$text-muted"),
                            (f" · {clean(place.why)}", "$text-muted"))


def _short(path: str) -> str:
    home = os.path.expanduser("~")  # noqa: PTH111
    return f"~{path.removeprefix(home)}" if home != "/" and path.startswith(home + "/") else path
