"""How soon after a change the screen is drawn."""

from __future__ import annotations

import pytest
from textual import screen
from textual.app import App

from gpu_panel.common import frames


@pytest.mark.parametrize(("said", "seconds"), [(None, 1 / 120), ("", 1 / 120), ("30", 1 / 60)])
async def test_a_screen_is_drawn_as_often_as_it_is_said(
        monkeypatch: pytest.MonkeyPatch, said: str | None, seconds: float) -> None:
    """Textual itself reads TEXTUAL_FPS, when it is imported; here that was before."""
    monkeypatch.setattr(screen, "UPDATE_PERIOD", 1 / 60)
    monkeypatch.delenv("TEXTUAL_FPS", raising=False)
    if said is not None:
        monkeypatch.setenv("TEXTUAL_FPS", said)
    frames.soon()
    async with App[None]().run_test() as pilot:
        assert pilot.app.screen._update_timer._interval == seconds
