"""Real ranks that wait for each other, and what is told of them: who, in which operation, where."""

from __future__ import annotations

import json
import time

import pytest
from click.testing import CliRunner

from gpu_engine.cli import cli
from gpu_engine.common.files import read_json
from gpu_engine.diagnose import hangs
from gpu_engine.runs import folder as runs
from gpu_engine.runs.follow import Follower

from ..conftest import wait_for
from ..observe.kit import PYTHON, SCRIPTS, engine_run

TWO = ("--mode", "ddp", "--devices", "cpu:0,cpu:1", "--set", "parallel.launcher=direct")
ENV = {"OMP_NUM_THREADS": "1"}


def begin(fault: str, *more: str) -> runs.Run:
    done = CliRunner().invoke(cli, ["run", "--detach", *TWO, "--", PYTHON,
                                    str(SCRIPTS / "hang.py"), fault, *more], env=ENV)
    assert done.exit_code == 0, done.output
    return runs.find(done.stdout.strip())


def told(run: runs.Run) -> hangs.Hang | None:
    """What is told of ranks that have both said where they are; None before that."""
    follower = Follower(run)
    while follower.poll(budget=1.0):
        pass
    assert follower.state.live, run.log(0).read_text() + run.log(1).read_text()
    views = follower.ranks.values()
    if not all(v.step_times and v.stands is not None for v in views):
        return None
    return hangs.found(views, time.time(), at_least=8.0)


SLEEPS = "tests/scripts/hang.py:" + str(1 + (SCRIPTS / "hang.py").read_text().splitlines().index(
    "    time.sleep(3600)"))
HANGS = {
    "barrier": (0, False, ("rank 0 in barrier #", "in checkpoint", "rank 1 in all_reduce #",
                           "in step", "if rank == 0:")),
    "loop": (1, True, ("rank 0 waits for rank 1 in all_reduce #", "in step",
                       "rank 1 works at ", "in spin")),
    "sleep": (1, False, ("rank 0 waits for rank 1", f"rank 1 stands still at {SLEEPS}")),
    "loader": (1, False, ("rank 0 waits for rank 1",
                          "rank 1 stands still, waiting for its DataLoader, at ")),
    "evaluation": (0, True, ("rank 1 waits for rank 0", "rank 0 works at ", "hang.py:")),
    "save": (0, True, ("rank 1 waits for rank 0", "rank 0 works at ", "in save")),
}
"""Rank, whether it works, and parts of the sentence."""


def test_who_waits_for_whom_is_told_with_the_line_of_each(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    started = {fault: begin(fault) for fault in HANGS}
    try:
        for fault, (rank, works, parts) in HANGS.items():
            hang = wait_for(lambda run=started[fault]: told(run))
            assert (hang.rank, hang.works) == (rank, works), (fault, hang)
            assert all(part in hang.text for part in parts), (fault, hang.text)
            assert len(hang.where) == 2
        shown = CliRunner().invoke(cli, ["show", started["barrier"].id, "--json"])
        assert json.loads(shown.stdout)["ranks"][0]["stands"]["collectives"]
    finally:
        for run in started.values():
            run.stop(now=True)
        for run in started.values():
            wait_for(lambda run=run: not run.state().live)


@pytest.mark.parametrize(("fault", "parts"), [
    ("left", ("rank 0 waits for rank 1 in all_reduce #", "rank 1 has ended after step 20")),
    ("caught", ("rank 0 waits for rank 1 in all_reduce #", "rank 1 has ended after step 40")),
    ("size", ("rank 0 was in a collective operation of another size than the others",
              "if rank ==")),
    ("unused", ("parameters that were not used in producing loss",))])
def test_a_rank_that_left_is_the_cause_of_the_failure(home, fault, parts):
    run, state = engine_run(*TWO, "--", PYTHON, str(SCRIPTS / "hang.py"), fault, env=ENV)
    assert state["state"] == "failed"
    assert all(part in state["cause"]["message"] for part in parts), state["cause"]["message"]
    assert read_json(run.path / "state.json")["cause"]["message"] == state["cause"]["message"]


def test_a_timeout_that_ends_a_run_says_who_did_not_come(home):
    _, state = engine_run(*TWO, "--", PYTHON, str(SCRIPTS / "hang.py"), "sleep", "14", env=ENV)
    assert state["state"] == "failed"
    text = state["cause"]["message"]
    assert text.startswith("rank 0 waits for rank 1 in all_reduce #"), text
    assert f"rank 1 stands still at {SLEEPS}" in text
