from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from . import ranks

TOY = f"{Path(__file__).with_name('toy.py')}:Toy"


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """Makes runs of the toy task; what the task writes down lies in the run folder."""
    def plan(name: str = "run", /, params: dict | None = None, **options) -> Path:
        run = tmp_path / name
        (run / "record").mkdir(parents=True, exist_ok=True)
        own = {"record": str(run / "record"), **(params or {})}
        return ranks.write_plan(run, TOY, params=own, **options)
    return plan


def recorded(run: Path, rank: int = 0, attempt: int = 1) -> list[tuple[float, list[int]]]:
    """(loss, example numbers) of each backward pass of a rank."""
    path = run / "record" / f"{rank}-{attempt}.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(float.fromhex(loss), [int(n) for n in numbers.split(",")])
            for loss, numbers in (line.split() for line in lines)]
