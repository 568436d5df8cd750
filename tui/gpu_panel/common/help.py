"""The help screen: what the focused pane is for, and every key from the table of keys."""

from __future__ import annotations

import textwrap
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Static

from gpu_panel import keys
from gpu_panel.common.dialogs import LETTERS
from gpu_panel.common.panes import PaneScreen
from gpu_panel.keys import Key, Section


class HelpScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        *LETTERS,
        Binding("escape,q,question_mark,f1", "close", "close")]

    def __init__(self, screen: Screen, focused: Widget | None) -> None:
        super().__init__()
        self._behind, self._focused = screen, focused
        self._run: str = getattr(screen, "run_at_hand", "")

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="sheet") as box:
            box.border_title = "Keys"
            box.border_subtitle = "esc close"
            box.styles.scrollbar_gutter = "stable"  # lines keep their width when a scrollbar comes
            yield Static()

    def on_resize(self) -> None:
        self.call_after_refresh(self._write)

    def _write(self) -> None:
        sheet = self.query_one(Static)
        sheet.update(Content("\n").join(self._lines(max(sheet.size.width, 30))))

    def _command(self, key: Key) -> str:
        command = keys.COMMANDS.get(key.id)
        return f" · $ {command.replace('{run.id}', self._run or 'RUN')}" if command else ""

    def _lines(self, width: int) -> list[Content]:
        lines: list[Content] = []
        for node in self._focused.ancestors_with_self if self._focused else ():
            text = getattr(node, "HELP", "") if isinstance(node, Widget) else ""
            if isinstance(text, str) and text and not isinstance(node, Screen):
                lines += [Content(" ".join(text.split())), Content("")]
                break
        sections = self._behind.key_sections() if isinstance(self._behind, PaneScreen) \
            else [Section("Everywhere", keys.of("app"))]
        for section in sections:
            lines.append(Content.styled(section.title, "bold $text-primary"))
            lines += [_line(keys.display(k.keys), k.tooltip + self._command(k), width)
                      for k in section.keys]
            lines.append(Content(""))
        return lines

    def action_close(self) -> None:
        self.dismiss(None)


def _line(key: str, text: str, width: int) -> Content:
    column = 24 if width >= 80 else 15
    first, *rest = textwrap.wrap(text, width - column, break_on_hyphens=False) or [""]
    return Content.assemble((f"  {key:<{column - 3}} ", "$text-accent"), first,
                            *(f"\n{'':{column}}{more}" for more in rest))
