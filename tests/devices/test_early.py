"""The probe may be started before it is known what to ask it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_engine.devices import probe
from gpu_engine.devices.discover import discover

from .conftest import forget_probe


@pytest.mark.parametrize(("path", "files", "found"), [
    ("{here}", (), True), ("/nowhere:{here}", (), True), ("/nowhere", (), False), ("", (), False),
    (":", (), False), (None, (), False), (None, ("/dev/null",), True),
    (None, ("/dev/nothing", "/dev/null"), True), ("/nowhere", ("/dev/nothing",), False)])
def test_a_driver_is_expected_by_its_files(path: str | None, files: tuple[str, ...], found: bool,
                                           tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # an empty folder is no folder
    there = tmp_path / "lib"
    for folder in (there, tmp_path):
        folder.mkdir(exist_ok=True)
        (folder / probe.NVML).touch()
    environ = {} if path is None else {"LD_LIBRARY_PATH": path.format(here=there)}
    assert probe.expected(environ, files) == found


def test_discover_asks_the_one_that_was_started(as_this_machine) -> None:
    as_this_machine("count 2")
    probe.begin()
    begun = probe._spare
    assert begun is not None
    assert not begun.ended()
    assert len(discover().devices) == 2
    assert probe._spare is begun


def test_none_is_started_without_a_sign(monkeypatch) -> None:
    forget_probe()
    monkeypatch.setattr(probe, "FILES", ())
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    probe.begin()
    assert probe._spare is None


def test_a_probe_that_cannot_be_started_is_no_error(as_this_machine, monkeypatch) -> None:
    as_this_machine("count 2")

    def refused() -> None:
        raise probe.Gone("Resource temporarily unavailable")

    monkeypatch.setattr(probe, "Probe", refused)
    probe.begin()
    assert probe._spare is None
