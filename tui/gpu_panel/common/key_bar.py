"""The last line of a screen: the keys that do something now. A click on one presses it.

Textual's Footer has a widget for each key and makes all of them anew after every move of the focus,
which lays the whole screen out again. This one is a single widget.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.content import Content
from textual.screen import Screen
from textual.widget import Widget

from gpu_panel import readonly


@dataclass(frozen=True, slots=True)
class ShownKey:
    press: str
    """Textual's name of the key."""
    text: str
    """The key for people: "^s"."""
    label: str
    tooltip: str
    enabled: bool


class KeyBar(Widget):
    """The keys that the screen's bindings ask to show. The mouse wheel moves a longer line."""

    ALLOW_SELECT = False
    DEFAULT_CSS = """
    KeyBar {
        dock: bottom;
        height: 1;
        text-wrap: nowrap;
        color: $footer-foreground;
        background: $footer-background;
        .key-bar--key { color: $footer-key-foreground; background: $footer-key-background;
                        text-style: bold; }
        .key-bar--label { color: $footer-description-foreground;
                          background: $footer-description-background; }
        .key-bar--off { color: $text-muted; background: $footer-description-background; }
        &:ansi .key-bar--off { text-style: dim; }
        &.-on-key { pointer: pointer; }
    }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {"key-bar--key", "key-bar--label", "key-bar--off"}

    def __init__(self, *, roomy: bool = False) -> None:
        """`roomy`: with a blank to the left of each key."""
        super().__init__()
        self._roomy = roomy
        self._left = 0
        self.shown: tuple[ShownKey, ...] = ()

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._bindings_changed)

    def on_unmount(self) -> None:
        self.screen.bindings_updated_signal.unsubscribe(self)

    def _bindings_changed(self, screen: Screen[object]) -> None:
        if not self.app.app_focus or not self.is_attached or screen is not self.screen:
            return
        by_action: dict[str, ShownKey] = {}  # an action with several keys shows its first
        for node, binding, enabled, tooltip in screen.active_bindings.values():
            if binding.show:
                by_action.setdefault(binding.action, ShownKey(
                    binding.key, self.app.get_key_display(binding), binding.description, tooltip,
                    enabled and not readonly.refuses(node, binding.action)))
        self.shown = tuple(by_action.values())
        self._scroll(0)
        self.refresh()

    def render(self) -> Content:
        key, label, off = (self.get_visual_style(f"key-bar--{name}")
                           for name in ("key", "label", "off"))
        parts: list[Content] = []
        for one in self.shown:
            text, said, gap = self._cells(one)
            parts += [Content.styled(text, key if one.enabled else off),
                      Content.styled(said, label if one.enabled else off), Content(gap)]
        return Content("").join(parts)[self._left:]

    def _cells(self, key: ShownKey) -> tuple[str, str, str]:
        """A key and its label, with the blanks around them, and the gap before the next key."""
        return (f" {key.text} ", f"{key.label} ", "") if self._roomy else \
            (key.text, f" {key.label}", " ")

    def _length(self) -> int:
        return sum(len("".join(self._cells(key))) for key in self.shown)

    def _at(self, x: int) -> ShownKey | None:
        start = -self._left
        for key in self.shown:
            text, said, gap = self._cells(key)
            end = start + len(text + said)
            if start <= x < end:
                return key
            start = end + len(gap)
        return None

    def on_mouse_move(self, event: events.MouseMove) -> None:
        key = self._at(event.x)
        tooltip = key.tooltip if key is not None and key.tooltip else None
        if tooltip != self.tooltip:
            self.tooltip = tooltip
            self.set_class(key is not None, "-on-key")

    def on_mouse_down(self, event: events.MouseDown) -> None:
        key = self._at(event.x)
        if key is not None and key.enabled:
            self.app.simulate_key(key.press)
        elif key is not None:
            self.app.bell()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        if self._scroll(4):
            event.stop()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        if self._scroll(-4):
            event.stop()

    def _scroll(self, cells: int) -> bool:
        """Move the line, as far as there is something hidden. Returns whether it moved."""
        left = max(0, min(self._left + cells, self._length() - self.size.width))
        moved = left != self._left
        self._left = left
        if moved:
            self.refresh()
        return moved
