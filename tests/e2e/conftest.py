"""Everything as a person has it."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def as_a_person(whole_torch: None) -> None:
    """Ranks have all of torch."""
