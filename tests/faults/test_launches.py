"""Launches and trainings in which something goes wrong, and what must hold after each case. See
docs/faults.md."""

from __future__ import annotations

import pytest

from . import cases_launch, cases_notify, cases_queue, cases_saving, cases_training
from .kit import Case, cases_of, put_through

CASES = cases_of(cases_launch, cases_notify, cases_queue, cases_saving, cases_training)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_fault(case: Case, tmp_path, monkeypatch) -> None:
    put_through(case, tmp_path, monkeypatch)
