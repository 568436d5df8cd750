"""Garbage is looked for when a screen was closed, and seldom beside that."""

from __future__ import annotations

import gc

import pytest
from textual.screen import ModalScreen, Screen

from gpu_panel.common import garbage

from ...conftest import gpus
from ..panel_kit import panel, until


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch):
    """How often everything was looked at, and frozen, and when it is looked at by itself."""
    found = {"collect": 0, "freeze": 0}
    before = gc.get_threshold()
    for name in found:
        monkeypatch.setattr(gc, name, lambda name=name: found.update({name: found[name] + 1}))
    monkeypatch.setattr(garbage, "_begun", False)
    monkeypatch.setattr(garbage, "_AFTER", 0.01)
    yield found
    gc.enable()
    gc.set_threshold(*before)


async def test_after_a_screen_was_closed_and_not_after_a_dialog(home, looks) -> None:
    garbage.hold()
    async with panel(gpus(2)) as (pilot, _):
        garbage.begin()
        assert looks == {"collect": 0, "freeze": 1}
        for screen, then in (ModalScreen[None](), 0), (Screen[None](), 1):
            await pilot.app.push_screen(screen)
            await pilot.app.pop_screen()
            if then:
                await until(pilot, lambda then=then: looks["collect"] == then)
            await pilot.pause()
            assert looks["collect"] == then


def test_what_is_young_is_looked_at_as_ever(looks) -> None:
    garbage.begin()  # a program that has not turned it off is left alone
    assert looks["freeze"] == 0
    young = gc.get_threshold()[:2]
    garbage.hold()
    assert not gc.isenabled()
    garbage.begin()
    assert gc.isenabled()
    assert gc.get_threshold()[:2] == young
    assert gc.get_threshold()[2] >= 500
