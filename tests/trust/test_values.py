"""Numbers that no clock shows and no machine has, in what others have written: in files that count
while their owner's process lives, in the log of uses, and one by one in a run's folder."""

from __future__ import annotations

import asyncio
import json
import math
import random
from contextlib import ExitStack
from itertools import cycle
from typing import Any

import pytest

from gpu_engine.common import paths
from gpu_engine.devices import leases
from gpu_engine.runs.folder import Run
from gpu_panel.common.errors import log_path
from gpu_panel.launch.runs import RunsPane
from gpu_panel.run.screen import RunScreen

from ..conftest import slots
from ..panel.panel_kit import panel, screen_text, until
from .hostile_runs import GOOD, JSON_FILES, good, places, prepared, read, replaced, write
from .test_corpus_panel import _seen
from .watching import end_of_traceback

ODD = (1e300, -1e18, math.nan, math.inf, -math.inf, 10 ** 400, True, "1", 1e11, 1 << 53, 1e-300)


@pytest.fixture
def others(world):
    """A hold, a run and a waiting run with each of `ODD` for every number, of a CPU slot each; and
    such lines in the log of uses."""
    folder, made = paths.private_folder(paths.leases_folder()), ExitStack()
    line = paths.private_folder(folder / "line")
    usage = paths.private_folder(paths.home() / "usage")
    with made:
        for number, odd in enumerate(ODD):
            key = leases.key(slots(len(ODD)).devices[number])
            said: dict[str, Any] = {"run": "3f2a", "pid": odd, "host": "h", "until": odd,
                                    "devices": [{"key": key, "label": f"CPU {number}"}]}
            waits = {"run": "3f2a", "queue": "/x", "ids": [key], "cpu": True} | dict.fromkeys(
                ("count", "free", "priority", "number"), odd)
            for place, file in ((folder, said), (folder, said | {"why": "reads"}), (line, waits)):
                made.enter_context(leases.make([place], file, leases.new_name()))
        (usage / "2026-09.jsonl").write_text("".join(
            json.dumps(use | {"user": "alice", "devices": ["GPU 0"]}) + "\n" for odd in ODD
            for use in ({"seen": odd}, {"hold": "a", "from": odd}, {"hold": "a", "to": odd})))
        yield folder


def test_of_other_users_in_every_command(others, watch):
    watching = watch()
    for words in (("devices",), ("devices", "--json"), ("queue",), ("queue", "--json"), ("runs",),
                  ("usage",), ("usage", "--json"), ("usage", "--since", "9d"),
                  ("page", "-o", str(watching.world.root / "out" / "p.html")),
                  ("hold", "--devices", "cpu:0", "--", "true")):
        said = watching.call(*words)
        if words[0] == "hold" or words == ("devices",):
            assert "held by" in said
    assert not watching.problems, "\n".join(watching.problems)


async def test_of_other_users_in_the_panel(others):
    async with panel(slots(len(ODD)), size=(160, 60)) as (pilot, _):
        await until(pilot, lambda: screen_text(pilot.app).count("held by run 3f2a") >= len(ODD),
                    60)
        for key in ("end", "pagedown", "home"):
            await pilot.press(key)
        assert "Something went wrong" not in screen_text(pilot.app)
    assert not log_path().exists()


def _spoilt(world, many: int) -> list[Run]:
    """So many runs, each good but for one number of a file."""
    pick, odd, made = random.Random(4), cycle(ODD), []
    for number in range(many):
        path = world.runs / f"{number:04d}"
        good(path, world)
        file = prepared(pick.choice((*JSON_FILES, "ranks/00000.jsonl", "devices.jsonl")), path)
        lines = [read(file)] if file.suffix == ".json" else \
            [json.loads(line) for line in file.read_text().splitlines()]
        at = pick.randrange(len(lines))
        numbers = [p for p in places(lines[at]) if _is_number(lines[at], p)]
        if numbers:
            lines[at] = replaced(lines[at], pick.choice(numbers), next(odd))
        write(file, lines[0])
        if file.suffix == ".jsonl":
            file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        made.append(Run(path))
    return made


def _is_number(value: Any, place: tuple[str | int, ...]) -> bool:
    for key in place:
        value = value[key]
    return isinstance(value, int | float) and not isinstance(value, bool)


async def test_one_in_a_run_in_the_panel(world, watch):
    made = _spoilt(world, 60)
    watching = watch()
    async with panel(slots(1), size=(160, 60), ready=False) as (pilot, screen):
        table = screen.query_one(RunsPane)
        async with asyncio.timeout(300):
            while table.lines is None or GOOD not in {line.id for line in table.lines}:
                await asyncio.sleep(0.01)
        await pilot.press("escape", "4", "right", *["pagedown"] * 4)
        assert "Something went wrong" not in screen_text(pilot.app)
    if log_path().exists():
        watching.say("the list", end_of_traceback(log_path().read_text()))
    for run in made[::6]:
        screen = RunScreen(run)
        await _seen(watching, f"the screen of {run.id}", screen,
                    lambda screen=screen: screen.store.caught_up, keys=("1", "2", "3", "4"))
    assert not watching.problems, "\n".join(dict.fromkeys(watching.problems))


def test_one_in_a_run_in_every_command(world, watch):
    made = _spoilt(world, 40)
    watching = watch()
    for words in (("runs",), ("runs", "--json"), ("queue",), ("sweep", "show", "s1"),
                  ("runs", "--best", "min:loss"), ("compare", *(str(run.path) for run in made))):
        watching.call(*words)
    for run in made:
        watching.call("show", str(run.path))
    assert not watching.problems, "\n".join(dict.fromkeys(watching.problems))
