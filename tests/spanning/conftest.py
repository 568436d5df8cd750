"""Ranks of these tests start quickly: what they compute is not the subject."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _quick(quick_torch: None) -> None:
    pass
