"""A run folder that is not as a run leaves it is one line with its reason; the others are shown
as ever, and nothing waits for what will never come."""

from __future__ import annotations

import json
import os
import subprocess
import time

import pytest

from gpu_engine.common import procs
from gpu_engine.runs import folder as runs

from .. import odd_runs, powers
from ..command_line import called


@pytest.fixture
def made():
    made = odd_runs.make()
    yield made
    odd_runs.reopen(made)


def engine(*args: str) -> subprocess.CompletedProcess[str]:
    with powers.root_powers_dropped():
        return called(*args)


def test_the_command_line_lists_all_of_them(made):
    good = odd_runs.ended()
    said = engine("runs", "-n", "50")
    assert said.returncode == 0, said.stderr
    lines = {line.split()[0]: line for line in said.stdout.splitlines()[1:]}
    assert set(lines) == {good.id, *(path.name for path, _ in made.values())}
    assert "completed" in lines[good.id]
    for what, (path, words) in made.items():
        if what != "its plan has another shape":
            assert words in lines[path.name], what
    assert "unreadable" in lines[made["it is closed"][0].name]
    told = json.loads(engine("runs", "--json", "-n", "50").stdout)
    assert len(told) == len(lines)


def test_each_is_shown_and_its_logs_are_printed(made):
    for what, (path, words) in made.items():
        said = engine("show", path.name)
        assert said.returncode == 0, (what, said.stderr)
        if what != "its plan has another shape":
            assert words in said.stdout + said.stderr, what
        assert "Traceback" not in said.stderr, what
    logs = engine("logs", made["a log is a FIFO"][0].name)
    assert logs.returncode == 0, logs.stderr
    closed = made["it is closed"][0]
    for command in (("show", str(closed)), ("runs", "rm", closed.name)):
        said = engine(*command)
        assert said.returncode == 2
        assert "can't be" in said.stderr
        assert "ermission denied" in said.stderr


def test_pruning_leaves_alone_what_nobody_can_judge(made):
    said = engine("runs", "prune", "--keep", "0", "--yes")
    assert said.returncode == 0, said.stderr
    assert made["it is closed"][0].exists()
    assert not made["its events are a folder"][0].exists()


def test_a_run_of_somebody_else_that_may_be_read_is_not_taken_for_lost():
    run = odd_runs.ended()
    run.write_state(runs.State("running", run.id, "toy", time.time(), pid=os.getpid(),
                               ticks=procs.start_ticks(os.getpid())))
    (run.path / "lock").chmod(0)
    try:
        with powers.root_powers_dropped():
            assert run.state().state == "running"
            run.write_state(runs.State("running", run.id, "toy", time.time(), pid=os.getpid(),
                                       ticks=1))
            assert run.state().state == "lost"
    finally:
        (run.path / "lock").chmod(0o600)
