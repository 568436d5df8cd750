"""The detail pane: it follows the cursor, fits any screen, and measures only what it shows."""

from __future__ import annotations

import pytest

from gpu_panel.launch.detail import DetailPane
from gpu_panel.launch.devices import DevicesPane

from ...machines import busy_machine
from ...panel_kit import NOW, compare, panel, screen_text, settled, shown, until

pytestmark = pytest.mark.usefixtures("home")
@pytest.fixture
def steady(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "lab-a100")
    monkeypatch.setattr("gpu_panel.launch.host_bar.time.strftime", lambda _: "14:02")
    monkeypatch.setattr("gpu_panel.launch.run_feed.RunsFeed.refresh", lambda self: ([], 0))
    monkeypatch.setattr("gpu_panel.launch.detail.time.time", lambda: NOW)


@pytest.mark.parametrize("size", [(80, 24), (160, 48)], ids=str)
async def test_golden(size, steady):
    four, sampler = busy_machine()
    async with panel(four, sampler=sampler, size=size) as (pilot, screen):
        await until(pilot, lambda: screen.source.freedom and screen.runs.lines is not None)
        await pilot.press("i")
        await settled(pilot, screen)
        await compare(f"detail-{size[0]}", pilot.app)


async def test_narrow_it_is_a_view_of_its_own():
    four, sampler = busy_machine()
    async with panel(four, sampler=sampler, size=(80, 24)) as (pilot, screen):
        await pilot.press("i")
        await pilot.pause()
        detail = screen.query_one(DetailPane)
        assert screen.focused is detail
        assert not screen.query_one(DevicesPane).display
        await pilot.press("right")
        await pilot.pause()
        assert detail.border_title.startswith("GPU 1 ─ ")
        await pilot.press("left")
        await pilot.press("escape")
        await pilot.pause()
        assert not detail.display
        assert screen.focused.id == "devices"
        await pilot.press("i", "2")
        await pilot.pause()
        assert not detail.display
        assert screen.query_one("#form").display


async def test_with_little_room_the_words_can_be_scrolled():
    four, sampler = busy_machine()
    async with panel(four, sampler=sampler, size=(80, 16)) as (pilot, screen):
        await pilot.press("enter")
        await pilot.pause()
        detail = screen.query_one(DetailPane)
        assert "GPU-00000000" in shown(detail)
        await pilot.press("down", "down", "down", "down")
        await pilot.pause()
        assert "graphics" in screen_text(pilot.app)
        assert detail.at_cursor.pid == 9
        await pilot.press(*["up"] * 30)
        await pilot.pause()
        assert "GPU-00000000" in shown(detail)
