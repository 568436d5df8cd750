"""`train.best`: which value decides, and in which direction."""

from __future__ import annotations

import pytest

from gpu_engine.common.errors import UserError
from gpu_engine.spec.schema import parse_best


def test_best_is_parsed() -> None:
    assert parse_best(None) is None
    assert parse_best("loss") == ("loss", False)
    assert parse_best("max:accuracy") == ("accuracy", True)
    with pytest.raises(UserError, match="expected the name"):
        parse_best("most:accuracy")
