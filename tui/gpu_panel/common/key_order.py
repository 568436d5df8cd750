"""Makes keys take effect in the order in which they were typed, however fast they arrive.

Textual gives a key to the widget that has the focus when the key arrives, even if an earlier key is
still to move the focus (tab) or to open a dialog (enter), and it runs priority bindings at once.
Over a slow connection keys arrive in bursts: a number typed after tab would land in the previous
field, and ctrl+l would overtake it. So each key waits until the one before it has been handled and
the messages about its effect have been delivered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial

from textual.app import App, ScreenError
from textual.events import Key, Paste
from textual.message import Message
from textual.message_pump import MessagePump

PATIENCE = 1.0
"""Seconds after which a key waits no longer if the one before has closed what would report back."""
LONGEST = 10
"""So many times as long it waits for what is still there, as for fields that are being drawn."""
_ROUNDS = 3
"""How often a message follows a key through the queues: once for the key, once for what the field
tells the form, once for what the form tells the screen."""


class Handled(Message):
    """Follows a key through the same queues, from the widget that got it up to the app."""

    def __init__(self, number: int, rounds: int) -> None:
        super().__init__()
        self.number = number
        self.rounds = rounds


class KeyOrder:
    """Holds keys back while an earlier one is handled. All calls come from the app's own task."""

    def __init__(self, app: App[None], handle: Callable[[Key | Paste], Awaitable[None]]) -> None:
        """`handle`: passes a key on as Textual would have."""
        self._app = app
        self._handle = handle
        self._waiting: deque[Key | Paste] = deque()
        self._number = 0
        self._with: MessagePump | None = None
        """Who has the message that follows the key under way."""
        self._under_way: int | None = None

    async def take(self, event: Key | Paste) -> None:
        self._waiting.append(event)
        await self._go_on()

    async def followed(self, message: Handled) -> None:
        if message.number != self._under_way:  # it came after PATIENCE was over
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
            if target is None:  # the last screen has closed
                continue
            await self._handle(event)
            self._number += 1
            if self._follow(target, self._number, _ROUNDS):
                self._under_way = number = self._number
                self._app.set_timer(PATIENCE, partial(self._late, number, LONGEST - 1))

    async def _late(self, number: int, times: int) -> None:
        if times and number == self._under_way and self._with is not None and self._with.is_running:
            self._app.set_timer(PATIENCE, partial(self._late, number, times - 1))
        else:
            await self._done(number)

    def _target(self) -> MessagePump | None:
        """What would get a key now; None if the app is about to end."""
        try:
            return self._app.focused or self._app.screen
        except ScreenError:
            return None

    def _follow(self, target: MessagePump | None, number: int, rounds: int) -> bool:
        self._with = target
        return target is not None and target.post_message(Handled(number, rounds))
