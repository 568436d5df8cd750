"""Every key, from the one table of them, and what the pane with the focus is for."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Static

from gpu_panel import keys


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
            yield Static(Content("\n").join(self._lines()))

    def _lines(self) -> list[Content]:
        lines: list[Content] = []
        for node in self._focused.ancestors_with_self if self._focused else ():
            told = getattr(node, "HELP", "") if isinstance(node, Widget) else ""
            if isinstance(told, str) and told and not isinstance(node, Screen):
                lines += [Content(" ".join(told.split())), Content("")]
                break
        from gpu_panel.screens.launch import LaunchScreen

        if isinstance(self._behind, LaunchScreen):
            for place, title in keys.PLACES.items():
                lines.append(Content.styled(title, "bold $text-primary"))
                lines += [_line(keys.display(k.keys), k.tooltip) for k in keys.of(place)]
                lines.append(Content(""))
            return lines
        # Another screen says its own: what is bound there now.
        for active in self._behind.active_bindings.values():
            binding = active.binding
            if binding.description and not binding.system:
                lines.append(_line(keys.display(binding.key),
                                   binding.tooltip or binding.description))
        return lines

    def action_close(self) -> None:
        self.dismiss(None)


def _line(key: str, text: str) -> Content:
    return Content.assemble((f"  {key:<22}", "$text-accent"), text)
