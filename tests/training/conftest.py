from __future__ import annotations

from pathlib import Path

import pytest

from gpu_engine.training import checkpoint

from . import ranks
from .zygote import MUTANTS, imported

TOY = f"{Path(__file__).with_name('toy.py')}:Toy"

if MUTANTS:  # once for all of them
    imported()


@pytest.fixture(autouse=True, scope="session")
def zygote():
    """Under `make mutants` it is a fork of this process: of one in which torch has computed, a rank
    may wait for ever."""
    if MUTANTS:
        ranks.zygote()


@pytest.fixture
def make(tmp_path):
    """Makes runs of the toy task; what the task writes down lies in the run folder."""
    def plan(name="run", /, params: dict | None = None, **options) -> Path:
        run = tmp_path / name
        (run / "record").mkdir(parents=True, exist_ok=True)
        own = {"record": str(run / "record"), **(params or {})}
        return ranks.write_plan(run, TOY, params=own, **options)
    return plan


def own_task(run: Path, body: str, **options) -> Path:
    """Plan a run of the toy task with `body` as further lines of its class."""
    task = run.with_name(f"{run.name}_task.py")
    task.write_text(
        "import atexit, csv, multiprocessing, os, random, signal, sys, threading, time\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from dataclasses import dataclass\nfrom pathlib import Path\nimport torch\n"
        "from torch import nn\nfrom toy import ATTEMPT, RANK, Numbers, Toy\n\n"
        "@dataclass\nclass Odd(Toy):\n"
        + "".join(f"    {line}\n" for line in body.splitlines()))
    return ranks.write_plan(run, f"{task}:Odd", **options)


def names(run: Path) -> list[str]:
    """Its checkpoints, the oldest first."""
    return [path.name for path in checkpoint.listed(run / "checkpoints")]


def recorded(run: Path, rank=0, attempt=1) -> list[tuple[float, list[int]]]:
    """(loss, example numbers) of each backward pass of a rank."""
    path = run / "record" / f"{rank}-{attempt}.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(float.fromhex(loss), [int(n) for n in numbers.split(",")])
            for loss, numbers in (line.split() for line in lines)]
