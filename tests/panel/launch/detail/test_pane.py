"""The detail pane: it follows the cursor, fits any screen, and measures only what it shows."""

import pytest
from textual.screen import Screen

from gpu_panel.launch.detail import DetailPane
from gpu_panel.launch.devices import DevicesPane

from ...machines import busy_machine
from ...panel_kit import NOW, compare, on_top, panel, says, screen_text, settled, shown, until


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


async def test_the_bus_is_measured_for_what_is_looked_at_alone():
    four, sampler = busy_machine()
    async with panel(four, sampler=sampler) as (pilot, screen):
        assert sampler.bus == ()
        await pilot.press("down", "i")
        await until(pilot, lambda: sampler.bus == ("1",))
        await pilot.press("down")
        await until(pilot, lambda: sampler.bus == ("2",))
        watch, watched = sampler.watch_bus, []
        sampler.watch_bus = lambda *ids: watched.append(ids) or watch(*ids)
        await pilot.press("question_mark")  # beside it they are still seen
        await says(pilot, "Tick the devices")
        await pilot.press("escape")
        await on_top(pilot, screen)
        assert set(watched) <= {("2",)}
        pilot.app.push_screen(Screen())
        await until(pilot, lambda: sampler.bus == ())
        pilot.app.pop_screen()
        await until(pilot, lambda: sampler.bus == ("2",))
        await pilot.press("i")
        await until(pilot, lambda: sampler.bus == ())


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
