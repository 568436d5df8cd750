"""Each test has a home of its own; the style sheets are parsed once for all panel tests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import textual.app
import textual.pilot
from textual._context import active_app
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.pilot import Pilot


@pytest.fixture(autouse=True)
def _at_home(home, monkeypatch):
    """No test looks at the runs and settings of who runs it, nor for their Slurm."""
    monkeypatch.setattr("gpu_engine.slurm.submit.can_be_asked", lambda: False)


_parse = Stylesheet._parse_rules
_parsed: dict[Any, list[RuleSet]] = {}


def _parse_once(self: Stylesheet, css: str, *place: Any, **more: Any) -> list[RuleSet]:
    """Reuse a sheet that was parsed with the same variables, that is, in the same theme. Parsed
    rules are never changed; Textual also reuses them within one app."""
    key = css, place, tuple(more.items()), frozenset(self._variables.items())
    if key not in _parsed:
        _parsed[key] = _parse(self, css, *place, **more)
    return _parsed[key]


Stylesheet._parse_rules = _parse_once  # type: ignore[method-assign]

# A toast that a busy machine takes five seconds to draw would be gone before a test looks.
textual.app.App.NOTIFICATION_TIMEOUT = 600

# The pilot's pause gives up after 30 s; a busy machine may take longer to show a screen.
Pilot._wait_for_screen.__defaults__ = (300.0,)


async def _idle(min_sleep=0.0, max_sleep=1.0):
    """Until this thread has nothing to do but to wait, and the screen shows what has changed.
    Textual's own way to find out sleeps for 20 ms at least, and up to a second while any thread of
    the process works: twice for each key."""
    loop, app = asyncio.get_running_loop(), active_app.get()
    while True:
        await asyncio.sleep(0)
        if loop._ready:  # type: ignore[attr-defined]
            continue
        screen = app._screen_stack[-1] if app._screen_stacks else None
        if screen is None or not (
                app._resize_event or screen._layout_required or screen._scroll_required
                or screen._repaint_required or screen._dirty_widgets or screen._callbacks):
            return
        await asyncio.sleep(0.005)  # the screen is drawn sixty times a second


textual.app.wait_for_idle = textual.pilot.wait_for_idle = _idle
