"""When garbage is looked for: not while a key waits.

Looking at everything that there is takes 30 to 50 ms. It is done after a screen was closed, when
there is most to find, and beside that seldom.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from textual.app import App

_SELDOM = 1000
"""Python looks at everything after so many looks at what is young: see `gc.set_threshold`."""
_AFTER = 1.0
"""Seconds from the closing of a screen, which are for drawing the one below."""
_begun = False


def hold() -> None:
    """Look for none until `begin`: little that is made until the first frame is garbage, and
    looking takes a fifth of that time."""
    gc.disable()


def begin() -> None:
    """Look for garbage from now on, if `hold` was called. What there is now is never looked at:
    nearly all of it stays."""
    global _begun
    if not gc.isenabled():
        gc.freeze()
        gc.set_threshold(*gc.get_threshold()[:2], _SELDOM)
        gc.enable()
        _begun = True


def closed_screen(app: App[None]) -> None:
    """Look at everything soon, as a screen was closed."""
    if _begun:
        app.set_timer(_AFTER, gc.collect)
