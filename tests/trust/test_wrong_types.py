"""Every value of every JSON file of a run folder replaced by one of another kind: a command says
what is wrong, if anything is, and leaves no traceback."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from .hostile_runs import (
    DIGITS,
    GOOD,
    JSON_FILES,
    WRONG,
    World,
    finished,
    good,
    places,
    prepared,
    read,
    replaced,
    write,
)
from .watching import Watch

KINDS = (*WRONG, float("nan"), float("inf"), DIGITS, 10**30)
_EVERY = 5
"""Each value gets every fifth of these, of a plan, which has most, every tenth, beginning with
another one; `make fuzz` tries all."""
_ID = "77aa"


def _keys() -> Iterator[tuple[str, str]]:
    """Each file with each of its outer keys."""

    with TemporaryDirectory() as folder:
        for name in JSON_FILES:
            run = Path(folder, name.replace("/", "_"))
            finished(run)
            yield from ((name, key) for key in read(prepared(name, run)))


@pytest.mark.parametrize(("name", "key"), list(_keys()))
def test_values(name: str, key: str, world: World, watch: Callable[[], Watch]):
    path = world.runs / _ID
    good(path, world)
    file = prepared(name, path)
    known = read(file)
    watching = watch()
    run, out = str(path), world.root / "out"
    every = 1 if os.environ.get("GPU_PANEL_EXAMPLES") == "fuzz" else \
        2 * _EVERY if name == "plan.json" else _EVERY
    for number, place in enumerate(p for p in places(known) if p[0] == key):
        for kind in KINDS[number % every::every]:
            write(file, replaced(known, place, kind))
            before = len(watching.problems)
            for words in (("runs",), ("show", run), ("sweep", "show", "s1"),
                          ("report", "-o", str(out / "r.html"), run),
                          ("compare", run, str(world.runs / GOOD)), ("stop", "--no-wait", run),
                          ("export", "--from", "best", run, str(out / "w.pt"))):
                watching.call(*words)
            where = ".".join(map(str, place))
            watching.problems[before:] = [f"{where} = {ascii(kind)[:30]}: {problem}"
                                          for problem in watching.problems[before:]]
    assert not watching.problems, "\n".join(watching.problems)
