"""Choosing from a list by typing a part of a name, in Textual's command palette."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from textual.app import App
from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.markup import escape
from textual.worker import WorkerCancelled

Entry = tuple[str, str, Callable[[], Any]]
"""(name, what is said about it, what is called when it is chosen). The texts may be of any origin:
markup in them counts for nothing. What is typed is looked for in both."""


class Palette(CommandPalette):
    """Textual's, but enter means what has been typed: the list follows it a moment later, and
    whoever types fast would get the first of the list before."""

    async def on_input_submitted(self) -> None:
        """Wait for the list before Textual takes its highlighted line."""
        for worker in [w for w in self.workers if w.node is self and not w.is_cancelled]:
            with suppress(WorkerCancelled):
                await worker.wait()


def pick(app: App[Any], wanted: str, entries: Sequence[Entry]) -> None:
    """Have the person choose one of the entries. `wanted`: what it is for."""
    class Entries(Provider):
        async def search(self, query: str) -> Hits:
            matcher = self.matcher(query)
            for name, about, chosen in entries:
                if (score := matcher.match(f"{name} {about}")) > 0:
                    yield Hit(score, Content(name), chosen, name, escape(about))

        async def discover(self) -> Hits:
            for name, about, chosen in entries:
                yield DiscoveryHit(Content(name), chosen, name, escape(about))

    app.push_screen(Palette(providers=[Entries], placeholder=wanted))
