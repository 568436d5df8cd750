"""What gives way to a key that was just pressed."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from textual import events

from gpu_panel.common import pressed
from gpu_panel.terminal.driver import QuietDriver


@pytest.fixture(autouse=True)
def nothing_pressed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pressed, "_at", -1e9)


def waits() -> bool:
    """Whether it would wait now."""
    coroutine = pressed.shown()
    try:
        coroutine.send(None)
    except StopIteration:
        return False
    finally:
        coroutine.close()
    return True


async def test_nothing_waits_where_no_key_was_pressed() -> None:
    assert not waits()


async def test_work_waits_until_the_key_is_shown() -> None:
    thread = threading.Thread(target=pressed.note)  # keys are read in a thread
    began = time.monotonic()
    thread.start()
    thread.join()
    await pressed.shown()
    assert time.monotonic() - began >= pressed.SHOWN


async def test_it_waits_only_once_while_keys_are_typed_without_end(
        monkeypatch: pytest.MonkeyPatch) -> None:
    async def typed(seconds: float) -> None:
        slept.append(seconds)
        pressed.note()

    slept: list[float] = []
    monkeypatch.setattr(asyncio, "sleep", typed)
    pressed.note()
    await pressed.shown()
    assert len(slept) == 1
    assert 0 < slept[0] <= pressed.SHOWN


@pytest.mark.parametrize(("event", "noted"), [
    (events.Key("r", "r"), True),
    (events.Paste("text"), True),
    (events.MouseDown(None, 1, 1, 0, 0, 1, False, False, False), True),
    (events.MouseScrollDown(None, 1, 1, 0, 0, 0, False, False, False), True),
    (events.MouseMove(None, 1, 1, 0, 0, 0, False, False, False), False),  # there is no end of them
    (events.AppFocus(), False),
])
async def test_what_the_terminal_sends(event: events.Event, noted: bool,
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    passed = []
    monkeypatch.setattr(QuietDriver.__mro__[1], "process_message",
                        lambda self, message: passed.append(message))
    QuietDriver.__new__(QuietDriver).process_message(event)
    assert waits() is noted
    assert passed == [event]
