"""Helpers shared by the tests of the charts."""

from __future__ import annotations

from gpu_engine.common.series import Series


def series(values: list[float], first: int = 0) -> Series:
    out = Series()
    for x, value in enumerate(values, first):
        out.add(x, value)
    return out
