"""Every hostile run folder against every command: nothing is executed, signalled or written outside
of the home, nothing is printed that a terminal obeys, and there is neither traceback nor wait.

`test_corpus_files` has those of which one file is not what it should be."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from .commands import act, look
from .hostile_runs import CASES, HEAVY, NAMES, OF_FILES, World, make
from .watching import Watch

Begin = Callable[[], Watch]


@pytest.mark.parametrize("name", [*(name for name in CASES if name not in OF_FILES), *NAMES])
def test_folder(name: str, world: World, watch: Begin):
    path = make(name, world)
    watching = watch()
    look(watching, path, few=name in HEAVY)
    act(watching, path)
    assert not watching.problems, "\n".join(dict.fromkeys(watching.problems))


def test_nothing_of_the_tests_own_is_wrong(world: World, watch: Begin):
    """The good run alone: every command does what it is for."""
    path = make("", world, "77aa")
    watching = watch()
    look(watching, path)
    assert "77aa" in watching.call("runs")
    for name in ("r.html", "r.md", "r.csv", "r0.csv", "f.csv"):
        assert (world.root / "out" / name).stat().st_size > 100
    act(watching, path)
    assert not watching.problems, "\n".join(watching.problems)
    assert not path.exists()
    assert os.listdir(world.root / "work") == []  # noqa: PTH208
