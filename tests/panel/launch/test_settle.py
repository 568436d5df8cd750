"""The next screen is imported once the launch screen has settled, away from the event loop."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

from gpu_panel.common import garbage
from gpu_panel.launch import settle

from ...conftest import gpus
from ..panel_kit import panel, until

NAME = "a_screen_opened_next"


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the module was there each time garbage was begun to be looked for."""
    found: list[bool] = []
    monkeypatch.setattr(settle, "SETTLED", 0.01)
    monkeypatch.setattr(settle, "NEXT", (NAME,))
    monkeypatch.setattr(garbage, "begin", lambda: found.append(NAME in sys.modules))
    return found


async def test_it_is_imported_in_a_thread(home, begun, monkeypatch, tmp_path: Path) -> None:
    tmp_path.joinpath(f"{NAME}.py").write_text(
        "import threading\nthread = threading.current_thread().name\n")
    monkeypatch.syspath_prepend(tmp_path)
    async with panel(gpus(2)) as (pilot, _):
        await until(pilot, lambda: begun)
    assert begun == [True]
    assert sys.modules.pop(NAME).thread == "panel-import"


async def test_a_module_that_cannot_be_imported_is_left_for_its_screen_to_name(home, begun) -> None:
    async with panel(gpus(2)) as (pilot, _):
        await until(pilot, lambda: begun)
        assert pilot.app.is_running
    assert begun == [False]


def test_the_modules_exist() -> None:
    for name in settle.NEXT:
        import_module(name)
