"""The line below the field of run.python: what the ranks run in, and the list to choose from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import events, work
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from gpu_engine.common.clean import clean
from gpu_engine.common.torch_words import torch_words
from gpu_engine.plan.records import Interpreter
from gpu_panel.common.choice import MENU
from gpu_panel.common.rows import fit

_CHOOSE = "choose another"


class InterpreterLine(Widget, can_focus=True):
    """Shows the interpreter of the review. Enter, space or a click lists those near by."""

    DEFAULT_CSS = """
    InterpreterLine {
        height: 1;
        width: 1fr;
        color: $text-muted;
        &:focus { background: $cursor; text-style: $cursor-style; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,space", "open", "Interpreters", show=False)]
    ABOUT = ("What the ranks of a task run in. enter shows the interpreters near by, each with its "
             "Python and its torch, to choose one")

    @dataclass
    class Chosen(Message):
        """The person chose an interpreter from the list."""

        python: str
        """Its path; empty: the one that is found for each run."""

    def __init__(self) -> None:
        super().__init__(id="interpreter")
        self._taken: Interpreter | None = None
        self._set = ""

    def show(self, taken: Interpreter | None, text: str) -> None:
        """Show what a run would take now, None for nothing. `text`: what the field says."""
        self._taken, self._set = taken, text.strip()
        self.refresh()

    def render(self) -> Content:
        room = max(1, self.size.width - 2)
        return Content(f"{fit(_text(self._taken), room).rstrip()} {MENU}")

    @work(exit_on_error=False, exclusive=True)
    async def action_open(self) -> None:
        from gpu_panel.launch.form.interpreters import InterpretersScreen  # with the first list

        chosen = await self.app.push_screen_wait(InterpretersScreen(self._set))
        if chosen is not None:
            self.post_message(self.Chosen(chosen))

    def on_click(self, event: events.Click) -> None:
        event.stop()
        self.action_open()


def _text(taken: Interpreter | None) -> str:
    if taken is None:
        return _CHOOSE
    told = [torch_words(taken.torch, taken.cuda, taken.hip)] if taken.torch else []
    told += [f"Python {taken.python}"] if taken.python else []
    told += [clean(taken.why)] if taken.why != "run.python" else []
    return " · ".join(told) or _CHOOSE
