"""Screens made of panes: tabs, keys, help and palette follow from a screen's list of panes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from textual import actions, events
from textual.binding import BindingType
from textual.content import Content
from textual.events import Resize
from textual.message import Message
from textual.reactive import reactive
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.worker import Worker, WorkerState

from gpu_panel import keys, readonly
from gpu_panel.keys import Key, Section


class Pane(Widget):
    """A part of a screen with a tab, a number key and keys of its own.

    A pane that inherits from another widget names that widget first, as Textual takes styles from
    the first base class only: `class LossPane(CurveView, Pane)`.
    """

    DEFAULT_CLASSES = "pane"
    """The frame, which is the same everywhere."""
    NAME: ClassVar[str]
    """Also its widget's id."""
    TITLE: ClassVar[str]
    """Its title in the tab and in the help."""
    CALLED: ClassVar[str] = ""
    """Its name within a sentence ("Go to the launch form"), if that is not the title."""
    TAB: ClassVar[bool] = True
    """Whether it has a tab and a number key. A pane without them is opened by another pane."""
    KEYS: ClassVar[tuple[Key, ...]] = ()
    """The screen binds those that are `everywhere`, the pane the others, by `keys.of_focus`."""

    def on_mount(self) -> None:
        """The title in the frame, until the pane says more there."""
        self.border_title = self.border_title or self.TITLE

    def enter(self) -> None:
        """Take the focus, as the person has chosen this pane."""
        self.focus(scroll_visible=False)

    def why_off(self, action: str, parameters: tuple[object, ...]) -> str:
        """Why an action can't be used now, for who presses its key; empty: nothing to say."""
        return ""

    def come_forward(self) -> None:
        """Show this pane if the screen has room for only one."""
        if isinstance(self.screen, PaneScreen):
            self.screen.bring_forward(self.NAME)


class PaneScreen(Screen[None]):
    """A screen whose keys, help and palette follow from its list of panes."""

    SCOPE: ClassVar[str] = ""
    """The scope of the screen's own keys in the table of keys."""
    PANES: ClassVar[tuple[type[Pane], ...]] = ()
    """Its panes, in the order of tabs, number keys and help."""
    KEYS: ClassVar[tuple[Key, ...]] = ()
    """All keys that work on the whole screen; made from SCOPE and PANES."""

    def __init_subclass__(cls, **options: Any) -> None:
        cls.KEYS = (*keys.of(cls.SCOPE),
                    *(_on_pane(pane, key) for pane in cls.PANES for key in pane.KEYS
                      if key.everywhere),
                    *_numbers(cls.PANES))
        bound: list[BindingType] = keys.bindings(cls.KEYS)
        cls.BINDINGS = bound
        super().__init_subclass__(**options)

    def on_resize(self, event: Resize) -> None:
        """Keep the pane with the focus in view if there is room for only one now."""
        focused = self.focused
        if focused is None:
            return
        pane = next((w for w in focused.ancestors_with_self if isinstance(w, Pane)), None)
        bar = next(iter(self.query(PaneBar)), None)
        if pane is not None and pane.TAB and bar is not None and bar.active != pane.NAME:
            self.bring_forward(pane.NAME)

    @property
    def is_seen(self) -> bool:
        """Whether nothing but dialogs stands before it."""
        stack = self.app.screen_stack
        return self in stack and all(isinstance(screen, ModalScreen)
                                     for screen in stack[stack.index(self) + 1:])

    @classmethod
    def tabs(cls) -> list[tuple[str, str]]:
        return [(pane.NAME, pane.TITLE) for pane in cls.PANES if pane.TAB]

    def pane(self, name: str) -> Pane:
        return self.query_one(f"#{name}", Pane)

    def bring_forward(self, name: str) -> None:
        """Show this pane if there is room for only one."""

    def action_back(self) -> None:
        self.dismiss(None)

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        if event.worker.group == "store" and event.state == WorkerState.ERROR:
            self.notify(f"The panel no longer reads what is shown: {event.worker.error}",
                        severity="error", markup=False, timeout=30)

    # --- help and palette ----------------------------------------------------------------------

    @classmethod
    def key_sections(cls) -> list[Section]:
        """Every key of this screen for the help, the panes' first; like panes share a section."""
        panes: dict[tuple[Key, ...], list[str]] = {}
        for pane in cls.PANES:
            own = tuple(k for k in pane.KEYS if not k.everywhere)
            panes.setdefault(own, []).append(pane.TITLE)
        return [*(Section(_sentence_case(", ".join(titles)), own)
                  for own, titles in panes.items() if own),
                *([Section("Your own commands", own)] if (own := keys.of("own")) else ()),
                Section("Everywhere on this screen", cls.KEYS),
                Section("Everywhere", keys.of("app"))]

    def palette_keys(self) -> list[Key]:
        """The keys that the palette offers: those of the screen that would do something now."""
        return [k for k in self.KEYS if k.palette and self._can(k)]

    def _can(self, key: Key) -> bool:
        _, name, parameters = actions.parse(key.action)
        return not readonly.refuses(self, key.action) and bool(self.check_action(name, parameters))

    # --- actions -------------------------------------------------------------------------------

    def action_pane(self, name: str) -> None:
        self.bring_forward(name)
        self.pane(name).enter()

    def on_pane_bar_picked(self, event: PaneBar.Picked) -> None:
        self.action_pane(event.pane)

    async def action_on_pane(self, name: str, action: str) -> None:
        await self.app.run_action(action, self.pane(name))

    def why_off(self, action: str, parameters: tuple[object, ...]) -> str:
        if action == "on_pane":
            pane, of_pane = map(str, parameters)
            _, action, parameters = actions.parse(of_pane)
            return self.pane(pane).why_off(action, parameters)
        return ""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Ask the pane whether an action of its own can be used."""
        if action == "on_pane":
            name, of_pane = map(str, parameters)
            _, action, parameters = actions.parse(of_pane)
            return self.pane(name).check_action(action, parameters)
        return super().check_action(action, parameters)


def _on_pane(pane: type[Pane], key: Key) -> Key:
    return replace(key, action=f"on_pane({pane.NAME!r}, {key.action!r})")


def _numbers(panes: Sequence[type[Pane]]) -> list[Key]:
    """A key for each pane with a tab: its number, and a function key, which works in fields too."""
    return [Key(f"pane.{pane.NAME}", pane.NAME, f"{number},f{number + 1}", f"pane({pane.NAME!r})",
                pane.NAME, f"Go to {pane.CALLED or pane.TITLE}", everywhere=True)
            for number, pane in enumerate((p for p in panes if p.TAB), 1)]


def _sentence_case(text: str) -> str:
    return text[:1].upper() + text[1:]


class StoreScreen(PaneScreen):
    """A screen that shows what a store reads: all of its panes, or one at a time with tabs."""

    AUTO_FOCUS = None
    LEAST: ClassVar[tuple[int, int]] = (100, 30)
    """The columns and lines from which on all panes are shown."""

    def __init__(self) -> None:
        super().__init__()
        self._front = self.PANES[0].NAME

    @property
    def is_small(self) -> bool:
        return self.size.width < self.LEAST[0] or self.size.height < self.LEAST[1]

    def _arrange(self) -> None:
        """Show the panes that there is room for."""
        raise NotImplementedError

    def on_resize(self, event: Resize) -> None:
        self._arrange()

    def bring_forward(self, name: str) -> None:
        self._front = name
        self._arrange()

    def _keep_focus(self, alone: bool) -> None:
        """Give the pane in front the focus if nothing that is shown has it, or it stands alone."""
        if self.focused is None or not self.focused.is_on_screen or alone:
            self.call_after_refresh(self._enter_front)

    def _enter_front(self) -> None:
        pane = self.pane(self._front)
        if not pane.has_focus_within:
            pane.enter()


# --- the tabs of panes ----------------------------------------------------------------------------

class PaneBar(Widget):
    """The panes' names with their number keys; a click on a name picks the pane."""

    active: reactive[str] = reactive("")
    """The pane that is shown; at first the first one."""

    @dataclass
    class Picked(Message):
        pane: str

    def __init__(self, panes: Sequence[tuple[str, str]], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._panes = tuple(panes)
        self.set_reactive(PaneBar.active, self._panes[0][0])
        self._marks: dict[str, str] = {}

    def mark(self, pane: str, text: str) -> None:
        """Show `text` after a pane's name: "✗" for a problem in it, "●2" for two live runs."""
        self._marks[pane] = text
        self.refresh()

    def _label(self, number: int, pane: str, title: str) -> str:
        mark = self._marks.get(pane, "")
        return f" {number} {title}{' ' + mark if mark else ''} "

    def render(self) -> Content:
        parts = []
        for number, (pane, title) in enumerate(self._panes, 1):
            style = "bold $text-primary on $primary-muted" if pane == self.active else "$text-muted"
            parts.append(Content.styled(self._label(number, pane, title), style))
        return Content(" ").join(parts)

    def on_click(self, event: events.Click) -> None:
        start = 0
        for number, (pane, title) in enumerate(self._panes, 1):
            end = start + len(self._label(number, pane, title))
            if start <= event.x < end:
                self.post_message(self.Picked(pane))
                return
            start = end + 1
