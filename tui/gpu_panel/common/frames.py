"""How soon after a change the screen is drawn."""

from __future__ import annotations

import os

from textual import screen

_A_SECOND = 120


def soon() -> None:
    """Have screens drawn up to 120 times a second, unless TEXTUAL_FPS says how often.

    Textual's own is 60, and after a drawing that took long its timer leaves out a period: a key
    that was pressed just then was seen up to 33 ms later. Drawing more often costs nothing where
    nothing has changed.
    """
    if not os.environ.get("TEXTUAL_FPS"):
        screen.UPDATE_PERIOD = 1 / _A_SECOND
