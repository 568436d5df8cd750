"""The fault suite as a whole; its cases are in the other files, so that workers can share them."""

from __future__ import annotations

from . import (  # noqa: F401
    cases_disk,
    cases_files,
    cases_hang,
    cases_launch,
    cases_notify,
    cases_processes,
    cases_saving,
    cases_training,
    test_files,
    test_launches,
    test_processes,
)
from .kit import CASES


def test_the_suite_has_enough_cases_with_descriptions() -> None:
    assert len(CASES) >= 30
    assert len({c.name for c in CASES}) == len(CASES)
    assert all(c.does and c.then for c in CASES)


def test_each_case_is_run_by_one_file() -> None:
    run = [case for file in (test_files, test_launches, test_processes) for case in file.CASES]
    assert sorted(c.name for c in run) == sorted(c.name for c in CASES)
