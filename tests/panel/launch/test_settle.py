"""The next screen is imported once the launch screen has settled, away from the event loop."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

from gpu_panel.launch import settle

from ...conftest import gpus
from ..panel_kit import panel, until

NAME = "a_screen_opened_next"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle, "SETTLED", 0.01)
    monkeypatch.setattr(settle, "NEXT", (NAME,))


async def test_it_is_imported_in_a_thread(home, monkeypatch, tmp_path: Path) -> None:
    tmp_path.joinpath(f"{NAME}.py").write_text(
        "import threading\nthread = threading.current_thread().name\n")
    monkeypatch.syspath_prepend(tmp_path)
    async with panel(gpus(2)) as (pilot, _):
        await until(pilot, lambda: NAME in sys.modules)
    assert sys.modules.pop(NAME).thread == "panel-import"


async def test_a_module_that_cannot_be_imported_is_left_for_its_screen_to_name(
        home, monkeypatch) -> None:
    tried: list[str] = []

    def fails(name: str) -> None:
        tried.append(name)
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(settle, "import_module", fails)
    async with panel(gpus(2)) as (pilot, _):
        await until(pilot, lambda: tried)
        await pilot.pause()
        assert pilot.app.is_running


def test_the_modules_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for name in settle.NEXT:
        import_module(name)
