"""A line of waiting runs."""

from __future__ import annotations

import pytest

from gpu_engine.common.paths import queue_folder
from gpu_engine.queue import change
from gpu_engine.queue.waiter import Waiter


@pytest.fixture
def line(home, tmp_path, monkeypatch):
    """The waiter of this home, which only moves when the test lets it."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    here = Waiter(queue_folder())
    yield here
    for devices in here._devices.values():
        devices.close()
    for one in change.line():
        one.run.stop()
