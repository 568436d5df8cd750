"""The cases of the fault suite, with the common invariants after each one; see docs/faults.md.

These tests run a part of the cases; `make faults` runs all of them, with more rounds, and prints
the table.
"""

from __future__ import annotations

import os
import time

import pytest

from . import (  # noqa: F401
    cases_disk,
    cases_files,
    cases_hang,
    cases_launch,
    cases_processes,
    cases_saving,
    cases_training,
)
from .disks import can_be_root
from .kit import CASES, Box, Case

FULL = os.environ.get("GPU_PANEL_FAULTS") == "all"


def test_the_suite_has_enough_cases_with_descriptions() -> None:
    assert len(CASES) >= 40
    assert len({c.name for c in CASES}) == len(CASES)
    assert all(c.does and c.then for c in CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_fault(case: Case, tmp_path, monkeypatch, record_property) -> None:
    record_property("case", case.name)
    if not (case.always or FULL):
        pytest.skip("runs with make faults")
    if case.root and not can_be_root():
        pytest.skip("needs root and mount")
    monkeypatch.setenv("GPU_PANEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    box = Box(tmp_path / "home", tmp_path, monkeypatch, FULL)
    began = time.monotonic()
    try:
        case.body(box)
        record_property("runs", box.check())
    finally:
        box.close()
        record_property("seconds", time.monotonic() - began)
