"""Helpers for tests of the launch screen: a machine made of records, waiting, the screen's text."""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from textual.pilot import Pilot
from textual.widget import Widget
from textual.widgets import Input

from gpu_engine.devices.records import HostSample, Inventory, Sample, Snapshot
from gpu_engine.remote.reach.hosts import Host
from gpu_engine.remote.reach.watcher import HostSeen
from gpu_panel.app import PanelApp
from gpu_panel.launch.screen import LaunchScreen

from ..conftest import in_vain, patience

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
GOLDENS = Path(__file__).parent / "goldens"
NOW = 1_800_000_000.0


class StillSampler:
    """A sampler that always returns the same snapshot."""

    def __init__(self, inventory: Inventory, samples: tuple[Sample, ...] | None = None,
                 age: float = 0.2, problem: str | None = None) -> None:
        samples = samples or tuple(Sample(d, utilization=0.0, memory_used=0,
                                          memory_total=d.memory_total, processes=())
                                   for d in inventory.devices)
        host = HostSample(0.12, 61 << 30, 251 << 30, 812 << 30)
        self.latest: Snapshot | None = Snapshot(NOW, samples, host, problem)
        self.recent = (self.latest,) * 3
        self.closed = False
        self._age = age

    def age(self) -> float | None:
        return self._age

    def close(self) -> None:
        self.closed = True


class StillHosts:
    """Other machines with fixed figures; `show` changes one."""

    def __init__(self, *seen: HostSeen) -> None:
        self.seen: tuple[HostSeen, ...] = seen
        self.closed = False

    def show(self, seen: HostSeen) -> None:
        self.seen = tuple(seen if s.host.name == seen.host.name else s for s in self.seen)

    def watch(self, host: Host) -> None:
        if host.name not in [s.host.name for s in self.seen]:
            self.seen += (HostSeen(host),)

    def close(self) -> None:
        self.closed = True


@asynccontextmanager
async def panel(inventory: Inventory, preset: str | None = None, *,
                size: tuple[int, int] = (160, 48), sampler: Any = None,
                sets: tuple[str, ...] = (), command: tuple[str, ...] | None = None,
                ready: bool = True, notifications: bool = False, hosts: Any = None,
                ) -> AsyncIterator[tuple[Pilot[None], LaunchScreen]]:
    """The panel on a made-up machine, its form filled and reviewed."""
    app = PanelApp(preset, sets=sets, command=command, inventory=inventory,
                   sampler=sampler or StillSampler(inventory), hosts=hosts)
    async with app.run_test(size=size, notifications=notifications) as pilot:
        screen = app.screen_stack[0]
        assert isinstance(screen, LaunchScreen)
        if ready:
            await until(pilot, lambda: screen.review is not None and screen.devices.resolved)
            await settled(pilot, screen)
        yield pilot, screen


async def until(pilot: Pilot[None], condition: Callable[[], Any],
                seconds: float | None = None) -> Any:
    """Let the app work until `condition` holds."""
    found = await _met(pilot, condition, seconds)
    await pilot.pause()  # the screen on top may not have its content yet
    return found


async def says(pilot: Pilot[None], *texts: str) -> None:
    """Wait until the screen shows all of these texts."""
    await until(pilot, lambda: all(text in screen_text(pilot.app) for text in texts))


async def on_top(pilot: Pilot[None], wanted: Any, *texts: str) -> None:
    """Wait until a screen, or one of a class, is on top and shows these texts."""
    await until(pilot, lambda: (isinstance(pilot.app.screen, wanted) if isinstance(wanted, type)
                                else pilot.app.screen is wanted)
                and all(text in screen_text(pilot.app) for text in texts))


def fields_of(app: PanelApp) -> dict[str, Any]:
    """The fields of the dialog in front, by their names."""
    return {field.asked: field.input for field in app.screen.fields}


async def said_below(pilot: Pilot[None], field: Any) -> None:
    """Wait until what is wrong stands below this field, which has the focus."""
    trouble = pilot.app.screen.query_one("#trouble")
    await until(pilot, lambda: field.has_focus and trouble.display
                and trouble.region.y == field.region.bottom)


async def _met(pilot: Pilot[None], condition: Callable[[], Any],
               seconds: float | None = None) -> Any:
    """Wait until `condition` holds, which some widgets may not have heard of yet.

    It asks every hundredth of a second, so it does not use `pilot.pause`, for which every widget
    of the screen handles a message.
    """
    began, limit = time.monotonic(), seconds or patience()
    while not (found := condition()):
        if pilot.app._exception is not None:
            raise pilot.app._exception
        waited = time.monotonic() - began
        # A dialog about a fault of ours is mostly why the condition does not come.
        if waited > limit or (waited > 9 and "Something went wrong" in screen_text(pilot.app)):
            raise AssertionError(f"{in_vain(condition, waited)}\n{_told(pilot.app)}")
        await asyncio.sleep(0.01)
    return found


def _told(app: Any) -> str:
    """Facts about an app that is stuck, for the message of a failed test."""
    facts = {name: vars(app.screen_stack[0]).get(name) for name in ("_debounce", "review")}
    workers = [(w.name, w.group, w.state.name, w.error) for w in app.workers]
    threads = [t.name for t in threading.enumerate()]
    return f"{screen_text(app)}\n{facts}\n{workers}\n{threads}"


async def settled(pilot: Pilot[None], screen: LaunchScreen) -> None:
    """Wait until the engine has reviewed what was typed last, and the screen shows it."""
    await quiet(pilot)
    await _met(pilot, lambda: screen._debounce is None)
    await _met(pilot, lambda: not [w for w in screen.app.workers
                                   if w.group in ("review", "task", "resolve", "free", "form")
                                   and not w.is_finished])
    await quiet(pilot)
    await pilot.pause()


async def press(pilot: Pilot[None], screen: LaunchScreen, *keys: str) -> None:
    """Press keys, and wait for what the engine says of it."""
    await pilot.press(*keys)
    await settled(pilot, screen)


async def quiet(pilot: Pilot[None]) -> None:
    """Wait until every message has been delivered, also those that others have led to.

    `pilot.pause` costs more, as it sends a message to every widget, and waits only for those that
    were under way when it was called.
    """
    app = pilot.app
    await _met(pilot, lambda: not any(
        node.message_queue_size or node._next_callbacks
        for node in (app, *app.screen.walk_children(with_self=True))))


async def type_into(pilot: Pilot[None], screen: LaunchScreen, field: str, text: str) -> None:
    """Replace the text of a field; the last character is typed."""
    screen.bring_forward("form")
    widget = screen.query_one("#" + field)
    await pilot.pause()
    widget.focus()
    await pilot.pause()
    assert isinstance(widget, Input)
    widget.value = text[:-1]
    await pilot.press("end", *map(_key, text[-1:]))
    await settled(pilot, screen)


def _key(char: str) -> str:
    from textual.keys import _character_to_key

    return _character_to_key(char)


def shown(widget: Widget) -> str:
    """The text that a widget shows now, line by line, without the blanks at line ends."""
    lines = widget.render_lines(widget.outer_size.region)  # with the frame
    return "\n".join(strip.text.rstrip() for strip in lines)


def screen_text(app: Any) -> str:
    """The whole screen as text. Only this function uses the compositor."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(s.text for s in strip).rstrip() for strip in strips)


def problems_below(screen: LaunchScreen) -> list[str]:
    """Every problem that is shown below a field."""
    from textual.widgets import Static

    return [line for place in screen.query(".below") if place.display
            for line in str(place.query_one(Static).content
                            if not isinstance(place, Static) else place.content).split("\n")]


async def compare(name: str, app: Any, draw: Callable[[Any], str] = screen_text) -> None:
    """Wait until the screen is that of goldens/NAME.txt; GOLDENS=write writes that file."""
    await _becomes(GOLDENS / f"{name}.txt", lambda: re.sub(
        r"[0-9]{1,2}:[0-9]{2}(?=\n)", "14:02", draw(app), count=1) + "\n")


async def picture(name: str, app: Any, folder: Path = PICTURES) -> None:
    """Wait until the screen is docs/pictures/NAME.svg, or that in `folder`; GOLDENS=write writes
    that file."""
    await _becomes(folder / f"{name}.svg",
                   lambda: app.export_screenshot(title="gpu-panel", simplify=True))


async def _becomes(path: Path, draw: Callable[[], str]) -> None:
    """A screen comes to its rest in steps: it shows what it has while it reads, and gives its parts
    their room again when more is there."""
    write = os.environ.get("GOLDENS") == "write"
    wanted = "" if write else path.read_text(encoding="utf-8")
    end = time.monotonic() + (2.0 if write else patience() / 2)  # a picture may follow
    while (drawn := draw()) != wanted and time.monotonic() < end:
        await asyncio.sleep(0.05)
    if write:
        path.write_text(drawn, encoding="utf-8")
    else:
        assert drawn == wanted, \
            f"the screen differs from {path.name}; GOLDENS=write writes it again"


async def looked(pilot, screen):
    """Wait until the devices are judged and the runs are read."""
    await until(pilot, lambda: screen.source.freedom and screen.runs.lines is not None)
    await settled(pilot, screen)
