"""A choice of one option: "○ off  ● bf16  ○ fp16", or only the chosen one, "bf16 ▾". Both open a
menu; up and down are left to the form around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from gpu_panel.common.dialogs import LETTERS
from gpu_panel.common.rows import fit


class ChoiceMenu(ModalScreen[str | None]):
    """Returns the value that was chosen, or None."""

    DEFAULT_CSS = """
    ChoiceMenu {
        OptionList { border: round $frame-focus; background: $surface; padding: 0 1;
                     scrollbar-size-vertical: 1; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *LETTERS, Binding("escape,left,q", "dismiss", "close"),
        Binding("space,right", "select", "choose")]

    def __init__(self, options: Sequence[tuple[str, str, str]], chosen: str, field: Region) -> None:
        """`options`: (value, text, a word about it). `field`: where the choice is on the screen."""
        super().__init__()
        self._options, self._chosen, self._field = tuple(options), chosen, field

    def compose(self) -> ComposeResult:
        wide = max(len(text) for _, text, _ in self._options)
        box = OptionList(*(Option(_line(text, about, wide), id=f"o{i}")
                           for i, (_, text, about) in enumerate(self._options)), markup=False)
        # Below the field, or above it if there is more room.
        field, screen = self._field, self.app.size
        longest = wide + max((len(about) + 2 for *_, about in self._options if about), default=0)
        width, height = min(longest + 5, screen.width), len(self._options) + 2
        below, above = screen.height - field.bottom, field.y
        y = field.bottom if height <= below or below >= above else max(0, above - height)
        box.styles.width = width
        box.styles.height = min(height, below if y == field.bottom else above)
        box.styles.offset = min(max(0, field.x - 2), screen.width - width), y
        yield box

    def on_mount(self) -> None:
        values = [value for value, *_ in self._options]
        box = self.query_one(OptionList)
        box.highlighted = values.index(self._chosen) if self._chosen in values else 0
        box.focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss(self._options[event.option_index][0])

    def on_click(self, event: events.Click) -> None:
        if event.widget is self:  # beside the menu
            self.dismiss(None)

    def action_select(self) -> None:
        self.query_one(OptionList).action_select()


def _line(text: str, about: str, wide: int) -> Content:
    if not about:
        return Content(text)
    return Content.assemble(f"{text:<{wide}}  ", (about, "$text-muted"))


CHOSEN, OTHER, MENU = "●", "○", "▾"
GAP = 2


class Choice(Widget, can_focus=True):
    """Options side by side, or in a menu alone. A RadioSet would need a widget for each option and
    its frame; Textual's Select takes the down key for itself."""

    DEFAULT_CSS = """
    Choice {
        height: auto;
        width: auto;
        &:focus { background: $cursor; text-style: $cursor-style; }
        &.-invalid { background: $error-muted; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1)", "Previous", show=False),
        Binding("right", "move(1)", "Next", show=False),
        Binding("enter,space", "open", "All options", show=False),
    ]

    value: reactive[str] = reactive("", layout=False)

    @dataclass
    class Changed(Message):
        choice: Choice
        value: str

        @property
        def control(self) -> Choice:
            """The widget that Textual's `on` compares with its selector."""
            return self.choice

    def __init__(self, options: Sequence[tuple[str, str]], *, id: str | None = None,
                 classes: str | None = None, notes: Sequence[str] = (),
                 closed: bool = False) -> None:
        """`options`: pairs (value, text on the screen). `notes`: a few words about each, for the
        menu. `closed`: show only the chosen one."""
        super().__init__(id=id, classes=classes)
        self.options = tuple(options)
        self.closed = closed
        self._notes = tuple(notes) or ("",) * len(self.options)
        self.set_reactive(Choice.value, self.options[0][0])

    def get_content_width(self, container: Size, viewport: Size) -> int:
        if self.closed:
            return max(container.width, 1)
        return min(sum(len(text) + GAP for text in self._texts()) - GAP, max(container.width, 1))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return 1 if self.closed else len(self._lines(width))

    def render(self) -> Content:
        if self.closed:
            room = max(1, self.size.width - 2)
            chosen = next((text for value, text in self.options if value == self.value), self.value)
            return Content(f"{fit(chosen, room)} {MENU}")
        texts = self._texts()
        return Content("\n").join(
            Content(" " * GAP).join(
                Content.styled(texts[i], "bold" if self.options[i][0] == self.value
                               else "$text-muted") for i in line)
            for line in self._lines(self.size.width))

    def _texts(self) -> list[str]:
        return [f"{CHOSEN if value == self.value else OTHER} {label}"
                for value, label in self.options]

    def _lines(self, width: int) -> list[list[int]]:
        lines: list[list[int]] = [[]]
        used = 0
        for i, text in enumerate(self._texts()):
            if lines[-1] and used + len(text) > width:
                lines.append([])
                used = 0
            lines[-1].append(i)
            used += len(text) + GAP
        return lines

    def choose(self, value: str) -> None:
        if value != self.value and value in [v for v, _ in self.options]:
            self.value = value
            self.post_message(self.Changed(self, value))

    def action_move(self, step: int) -> None:
        values = [v for v, _ in self.options]
        at = values.index(self.value) if self.value in values else -step
        self.choose(values[(at + step) % len(values)])

    @work(exit_on_error=False, exclusive=True)
    async def action_open(self) -> None:
        options = [(value, text, note) for (value, text), note in
                   zip(self.options, self._notes, strict=True)]
        chosen = await self.app.push_screen_wait(ChoiceMenu(options, self.value, self.region))
        if chosen is not None:
            self.choose(chosen)

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None:
            return
        if self.closed:
            self.action_open()
            return
        lines, texts = self._lines(self.size.width), self._texts()
        start = 0
        for i in lines[offset.y] if offset.y < len(lines) else ():
            if start <= offset.x < start + len(texts[i]):
                self.choose(self.options[i][0])
                return
            start += len(texts[i]) + GAP
