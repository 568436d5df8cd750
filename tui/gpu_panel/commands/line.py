"""`:`, a line for a command: an action of the screen by its name, or gpu-engine with any words.

ctrl+p finds actions by what they say; this runs what one knows, and remembers it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.suggester import Suggester
from textual.widgets import Input, Static

from gpu_engine.common.clean import clean
from gpu_engine.common.errors import UserError
from gpu_panel import readonly, themed
from gpu_panel.common.background import in_thread
from gpu_panel.common.dialogs import harmless

PROGRAM = "gpu-engine"
_KEY, _MOST = "lines", 50


class _Suggester(Suggester):
    """Completes a line that was run before, an action's name, or what a shell would complete."""

    def __init__(self, known: Sequence[str]) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._known = known

    async def get_suggestion(self, value: str) -> str | None:
        found = next((line for line in self._known if line.startswith(value)), None)
        if found is not None or not value.startswith(f"{PROGRAM} "):
            return found or (PROGRAM + " " if PROGRAM.startswith(value) else None)
        return await in_thread(lambda: _as_a_shell(value))


def _as_a_shell(value: str) -> str | None:
    """What tab in a shell would put behind the line; None for nothing. Blocks."""
    from gpu_engine.cli import cli
    from gpu_engine.completion.answers import Bash, words

    args, typed = words(value)
    with suppress(UserError):
        for item in Bash(cli, {}, PROGRAM, "").get_completions(args, typed):
            if item.value != typed and item.value.startswith(typed) and value.endswith(typed):
                return value + clean(item.value[len(typed):])
    return None


class CommandLine(ModalScreen[str | None]):
    """Asks for a line, and returns it. The right arrow takes what is suggested."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "cancel"), Binding("up", "earlier(-1)", "earlier"),
        Binding("down", "earlier(1)", "later")]

    def __init__(self, known: Sequence[str]) -> None:
        super().__init__()
        self._before = before()
        self._known = known
        self._at = len(self._before)

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = "Command"
            box.border_subtitle = "→ complete · ↑ earlier · enter run · esc"
            words = ", ".join(readonly.READS) if readonly.on else "its words"
            yield Static(harmless(f"An action's name, or {PROGRAM} and {words}"),
                         classes="dialog-note")
            yield Input(compact=True, id="line", max_length=4000, suggester=_Suggester(
                [*reversed(self._before), *self._known]))

    def action_earlier(self, by: int) -> None:
        """Show the line that was run before this one, or after it."""
        self._at = max(0, min(self._at + by, len(self._before)))
        line = self.query_one(Input)
        line.value = [*self._before, ""][self._at]
        line.cursor_position = len(line.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.dismiss(event.value.strip())

    def action_cancel(self) -> None:
        self.dismiss(None)


def before() -> list[str]:
    kept = themed.read().get(_KEY)
    return [line for line in kept if isinstance(line, str)] if isinstance(kept, list) else []


def remember(line: str) -> None:
    """Raises OSError."""
    themed.keep(_KEY, lambda: [*(one for one in before() if one != line), line][-_MOST:])


def meaning(line: str, actions: Iterable[str]) -> tuple[str, list[str]] | str:
    """What a line asks for: an action's name out of `actions`, or the words for gpu-engine. A
    text says why it is neither."""
    try:
        words = shlex.split(line)
    except ValueError as err:
        return f"{line}: {err}"
    if words and words[0] == PROGRAM:
        return "", words[1:]
    if line in actions:
        return line, []
    near = [name for name in actions if name.startswith(line)]
    if len(near) == 1:
        return near[0], []
    return f"{line}: " + (f"that could be {', '.join(near[:6])}" if near else
                          f"there is no such action on this screen; {PROGRAM} … runs a command")
