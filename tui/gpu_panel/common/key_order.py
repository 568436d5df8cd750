"""Keys take effect in the order in which they were typed, however fast they come.

Textual hands a key to the widget that has the focus when the key arrives, although what an earlier
key does (tab moves the focus, enter opens a dialog) has not happened yet, and asks priority
bindings at once. Over a slow connection keys come in bursts: a number typed after tab would end in
the field before, and ctrl+l would overtake it. So each key waits until the one before has been all
the way to where it is handled, and what it changed has been told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable

from textual.app import App, ScreenError
from textual.events import Key, Paste
from textual.message import Message
from textual.message_pump import MessagePump

PATIENCE = 1.0
"""Seconds that a key waits at most: the one before may have closed where it would be followed."""
_ROUNDS = 3
"""The key; what the field that took it told the form; what the form told the screen."""


class Handled(Message):
    """Follows a key along the same queues, from the widget that got it up to the app."""

    def __init__(self, number: int, rounds: int) -> None:
        super().__init__()
        self.number = number
        self.rounds = rounds


class KeyOrder:
    """Holds keys back while one is on its way. All calls are from the app's own task."""

    def __init__(self, app: App[None], handle: Callable[[Key | Paste], Awaitable[None]]) -> None:
        """`handle`: what the app does with a key that has just come."""
        self._app = app
        self._handle = handle
        self._waiting: deque[Key | Paste] = deque()
        self._number = 0
        self._under_way: int | None = None

    async def take(self, event: Key | Paste) -> None:
        """A key that was typed."""
        self._waiting.append(event)
        await self._go_on()

    async def followed(self, message: Handled) -> None:
        """The app has got a `Handled`."""
        if message.number != self._under_way:  # too late
            return
        if message.rounds == 1 or not self._waiting or \
                not self._follow(self._target(), message.number, message.rounds - 1):
            await self._done(message.number)

    async def _done(self, number: int) -> None:
        if number == self._under_way:
            self._under_way = None
            await self._go_on()

    async def _go_on(self) -> None:
        while self._waiting and self._under_way is None:
            event = self._waiting.popleft()
            target = self._target()
            await self._handle(event)
            self._number += 1
            if self._follow(target, self._number, _ROUNDS):
                self._under_way = number = self._number
                self._app.set_timer(PATIENCE, lambda number=number: self._done(number))

    def _target(self) -> MessagePump | None:
        """Who gets a key now; None: the app is about to end."""
        try:
            return self._app.focused or self._app.screen
        except ScreenError:
            return None

    @staticmethod
    def _follow(target: MessagePump | None, number: int, rounds: int) -> bool:
        return target is not None and target.post_message(Handled(number, rounds))
