"""The last line of a screen: the keys that do something now. A click on one presses it.

Textual's Footer has a widget for each key and makes all of them anew after every move of the focus,
which lays the whole screen out again. This one is a single widget.
"""

from __future__ import annotations

from typing import NamedTuple

from textual.content import Content
from textual.events import Click
from textual.screen import Screen
from textual.style import Style
from textual.widgets import Static

from gpu_panel import readonly
from gpu_panel.common.painting import put


class ShownKey(NamedTuple):
    press: str
    """Textual's name of the key."""
    text: str
    """The key for people: "^s"."""
    label: str
    enabled: bool


class KeyBar(Static):
    """The keys that the screen's bindings ask to show."""

    ALLOW_SELECT = False
    DEFAULT_CSS = """
    KeyBar {
        dock: bottom;
        height: 1;
        text-wrap: nowrap;
        color: $footer-foreground;
        background: $footer-background;
    }
    """
    shown: tuple[ShownKey, ...] = ()

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._bindings_changed)

    def _bindings_changed(self, screen: Screen[object]) -> None:
        if not self.app.app_focus or not self.is_attached or screen is not self.screen:
            return
        by_action: dict[str, ShownKey] = {}  # an action with several keys shows its first
        for node, binding, enabled, _ in screen.active_bindings.values():
            if binding.show:
                by_action.setdefault(binding.action, ShownKey(
                    binding.key, self.app.get_key_display(binding), binding.description,
                    enabled and not readonly.refuses(node, binding.action)))
        self.shown = tuple(by_action.values())
        parts: list[Content] = []
        for key in self.shown:
            on, off = ("bold $footer-key-foreground", ""), ("bold $text-muted", "$text-muted")
            of_key, of_label = on if key.enabled else off
            part = Content.assemble((key.text, of_key), (f" {key.label}", of_label))
            parts.append(part.stylize(Style.from_meta({"press": key.press})))
        put(self, Content(" ").join(parts), layout=False)

    def on_click(self, event: Click) -> None:
        press = event.style.meta.get("press")
        for key in self.shown:
            if key.press == press and key.enabled:
                self.app.simulate_key(key.press)
