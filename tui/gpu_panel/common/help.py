"""Every key, from the one table of them, and what the pane with the focus is for."""

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
from gpu_panel.common.panes import PaneScreen


class HelpScreen(ModalScreen[None]):
    """Help for the focused pane first, then all keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,f1", "close", "close")]

    def __init__(self, screen: Screen, focused: Widget | None) -> None:
        super().__init__()
        self._behind, self._focused = screen, focused

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="sheet") as box:
            box.border_title = "Keys"
            box.border_subtitle = "esc close"
            box.styles.scrollbar_gutter = "stable"  # lines are as wide as they will be
            yield Static()

    def on_resize(self) -> None:
        self.call_after_refresh(self._write)

    def _write(self) -> None:
        sheet = self.query_one(Static)
        sheet.update(Content("\n").join(self._lines(max(sheet.size.width, 30))))

    def _lines(self, width: int) -> list[Content]:
        lines: list[Content] = []
        for node in self._focused.ancestors_with_self if self._focused else ():
            told = getattr(node, "HELP", "") if isinstance(node, Widget) else ""
            if isinstance(told, str) and told and not isinstance(node, Screen):
                lines += [Content(" ".join(told.split())), Content("")]
                break
        if isinstance(self._behind, PaneScreen):
            for section in self._behind.key_sections():
                lines.append(Content.styled(section.title, "bold $text-primary"))
                lines += [_line(keys.display(k.keys), k.tooltip, width) for k in section.keys]
                lines.append(Content(""))
            return lines
        # Another screen says its own: what is bound there now.
        for active in self._behind.active_bindings.values():
            binding = active.binding
            sent = not binding.key.startswith("super+")  # by hardly a terminal
            if binding.description and not binding.system and sent:
                lines.append(_line(keys.display(binding.key),
                                   binding.tooltip or binding.description, width))
        return lines

    def action_close(self) -> None:
        self.dismiss(None)


def _line(key: str, text: str, width: int) -> Content:
    """The text beside its key, wrapped in its own column."""
    column = 24 if width >= 80 else 15
    first, *rest = textwrap.wrap(text, width - column) or [""]
    return Content.assemble((f"  {key:<{column - 3}} ", "$text-accent"), first,
                            *(f"\n{'':{column}}{more}" for more in rest))
