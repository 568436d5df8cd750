"""`frozen` makes a frozen dataclass, with slots where Python knows them."""

from __future__ import annotations

import sys
from dataclasses import FrozenInstanceError

import pytest

from gpu_engine.common.frozen import frozen


@frozen
class Plain:
    x: int
    y: float = 1.5


@frozen(slots=True)
class Slotted:
    x: int
    y: float = 1.5


@pytest.mark.parametrize("made", [Plain, Slotted])
def test_nothing_can_be_changed(made):
    one = made(1)
    assert one == made(1, 1.5)
    with pytest.raises(FrozenInstanceError):
        one.x = 2


def test_slots_are_left_out_where_python_does_not_know_them(monkeypatch):
    assert not hasattr(Slotted(1), "__dict__")
    monkeypatch.setattr(sys, "version_info", (3, 9, 18))
    assert hasattr(frozen(slots=True)(type("Old", (), {"__annotations__": {"x": int}}))(1),
                   "__dict__")
