"""Files and disks that fail, and what must hold after each case; see docs/faults.md."""

from __future__ import annotations

import pytest

from . import cases_disk, cases_files
from .kit import Case, cases_of, put_through

CASES = cases_of(cases_disk, cases_files)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_fault(case: Case, tmp_path, monkeypatch) -> None:
    put_through(case, tmp_path, monkeypatch)
