"""The line below the field of run.python: what the ranks run in; and the list of the interpreters
near by, each with its Python and its torch, to choose one."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from gpu_engine.common import paths
from gpu_engine.common.clean import clean
from gpu_engine.common.floors import torch_words
from gpu_engine.interpreters import candidates
from gpu_engine.interpreters.ask import Seen
from gpu_engine.interpreters.candidates import Place
from gpu_engine.plan.records import Interpreter
from gpu_panel.common.background import in_thread
from gpu_panel.common.choice import MENU, Choice
from gpu_panel.common.dialogs import LETTERS
from gpu_panel.common.errors import guard
from gpu_panel.common.rows import fit

_CHOOSE = "choose another"
_AT_ONCE = 4
_STRANGER = "belongs to another user, so it is not started to be asked"


class InterpreterLine(Choice):
    """Shows the interpreter of the review. Enter, space or a click lists those near by."""

    DEFAULT_CSS = "InterpreterLine { width: 1fr; color: $text-muted; }"
    ABOUT = ("What the ranks of a task run in. enter shows the interpreters near by, each with its "
             "Python and its torch, to choose one")

    @dataclass
    class Chosen(Message):
        python: str
        """Its path; empty: the one that is found for each run."""

    def __init__(self) -> None:
        super().__init__([("", "")], id="interpreter", closed=True)
        self._text, self._set = _CHOOSE, ""

    def show(self, taken: Interpreter | None, text: str) -> None:
        """Show what a run would take now, None for nothing. `text`: what the field says."""
        told: list[str] = []
        if taken is not None:
            told += [torch_words(taken.torch, taken.cuda, taken.hip)] if taken.torch else []
            told += [f"Python {taken.python}"] if taken.python else []
            told += [clean(taken.why)] if taken.why != "run.python" else []
        self._text, self._set = " · ".join(told) or _CHOOSE, text.strip()
        self.refresh()

    def render(self) -> Content:
        return Content(f"{fit(self._text, max(1, self.size.width - 2)).rstrip()} {MENU}")

    @work(exit_on_error=False, exclusive=True)
    async def action_open(self) -> None:
        chosen = await self.app.push_screen_wait(InterpretersScreen(self._set))
        if chosen is not None:
            self.post_message(self.Chosen(chosen))


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
            self._places = await in_thread(lambda: candidates.around(folder, os.environ))
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
            seen = await in_thread(lambda: candidates.inspect(place))
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
