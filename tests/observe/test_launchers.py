"""Each rank of a script is found, whether we start the ranks or the script's own launcher does."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpu_engine.cli import cli
from gpu_engine.common import procs

from ..conftest import wait_for
from .kit import PYTHON, SCRIPTS, Ran, engine_run, observe, start

BIN = Path(sys.executable).parent
DDP = str(SCRIPTS / "ddp.py")
TWO = ("--mode", "ddp", "--devices", "cpu:0,cpu:1")
ENV = {"PATH": f"{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}


def run(*command: str, options=("--devices", "cpu:0")) -> Ran:
    found, state = engine_run(*options, "--", *command, env=ENV)
    return Ran(found, state, None)


def printed(log: str, rank: int) -> list[float]:
    name = f"rank {rank} loss "
    return [float(f"{float(line.split(name)[1]):.9g}") for line in log.splitlines() if name in line]


@pytest.mark.parametrize("command", [
    ("bash", str(SCRIPTS / "own_ranks.sh"), DDP, "2"), (PYTHON, DDP, "spawn")],
    ids=["bash-torchrun", "spawn"])
def test_each_rank_is_seen(home, command):
    seen = run(*command)
    logs = "".join(seen.log(r) for r in seen.run.ranks() if seen.run.log(r).exists())
    assert seen.state["state"] == "completed", logs
    assert seen.run.ranks() == [0, 1]
    pids = set()
    for rank in (0, 1):
        assert seen.losses(rank) == printed(logs, rank)
        assert len(seen.losses(rank)) == 6
        begun = seen.of("start", rank)[-1]
        assert (begun["rank"], begun["world_size"], begun["attempt"]) == (rank, 2, 1)
        assert seen.events(rank)[-1]["kind"] == "end"
        assert seen.events(rank)[-1]["outcome"] == "completed"
        assert not seen.of("warning", rank)
        pids.add(begun["pid"])
    assert len(pids) == 2
    assert not (seen.run.path / "observe-errors.log").exists()


def test_ranks_that_accelerate_launches_are_seen_but_not_its_launcher(home):
    seen = run("accelerate-launch", "--multi_gpu", "--num_processes=2", "--num_machines=1",
               "--mixed_precision=no", "--dynamo_backend=no", str(SCRIPTS / "with_accelerate.py"))
    assert seen.state["state"] == "completed", seen.log()
    assert seen.run.ranks() == [0, 1]
    for rank in (0, 1):
        assert seen.losses(rank) == printed(seen.log(), rank)
        assert len(seen.losses(rank)) == 4
        (begun,) = seen.of("start", rank)
        assert (begun["rank"], begun["world_size"]) == (rank, 2)
        assert begun["pid"] != seen.state["processes"][0]["pid"]
        assert seen.events(rank)[-1]["outcome"] == "completed"


def logs(seen: Ran, *args: str) -> Result:
    return CliRunner().invoke(cli, ["logs", seen.run.id, *args])


def test_below_our_own_torchrun_each_rank_has_its_log(home):
    seen = run(PYTHON, DDP, options=(*TWO, "--set", "parallel.launcher=torchrun"))
    assert seen.state["state"] == "completed"
    for rank in (0, 1):
        assert f"rank {1 - rank} loss" not in logs(seen, "--rank", str(rank)).stdout
        assert seen.losses(rank) == printed(logs(seen, "--rank", str(rank)).stdout, rank)
    assert "rank 1| rank 1 loss" in logs(seen).stdout


@pytest.mark.parametrize("launcher", [
    ("torchrun", "--nproc-per-node=2", DDP, "kill"), (PYTHON, DDP, "spawn", "kill")],
    ids=["torchrun", "spawn"])
def test_a_rank_that_is_killed_leads_and_its_signal_is_named(home, launcher):
    """Not the one whose connection broke with that, nor what has started them."""
    seen = run(*launcher)
    cause = seen.state["cause"]
    assert seen.state["state"] == "failed"
    assert (cause["rank"], cause["type"]) == (1, None), seen.log()
    assert cause["message"].startswith("killed by SIGKILL")


@pytest.mark.parametrize(("way", "how"), [("spawn", "fail"), ("fork", "fail,exit")],
                         ids=["spawn", "fork"])
def test_an_error_in_a_child_is_seen_without_an_excepthook(home, way, how):
    """Beside that, in `fork`, an exception that a child has handled is no error, and ranks that a
    command has started share its log."""
    seen = observe("children.py", way, how, bare=way != "spawn")  # torch's words name pids
    assert seen.state["state"] == "failed"
    cause = seen.state["cause"]
    assert (cause["rank"], cause["type"], cause["message"]) \
        == (1, "ValueError", "rank one has had enough")
    assert 'children.py", line' in cause["traceback"]
    assert "terminated with the following error" not in cause["traceback"]
    assert seen.events(1)[-1]["outcome"] == "failed"
    assert len(seen.losses(1)) == 4  # the last one too, although no atexit function ran
    if seen.bare is None:
        return
    seen.same_as_without()
    assert not seen.of("error", 2)
    assert [seen.events(rank)[-1]["outcome"] for rank in (0, 1, 2)] \
        == ["completed", "failed", "failed"]
    told = logs(seen, "--rank", "1")
    assert told.stdout == seen.log()
    assert "rank 1 was started by the command itself" in told.stderr
    assert logs(seen).stdout == seen.log()
    missing = logs(seen, "--rank", "3")
    assert "has no log of rank 3; it has ranks 0, 1, 2" in str(missing.exception)


LONG = """
import sys
sys.path.insert(0, {scripts!r})
import quick, show, torch
model = show.toy()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
try:
    while True:
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        import time; time.sleep(0.01)
finally:
    print("saved", flush=True)
"""


def test_a_script_is_asked_to_stop_and_gets_time_to_save(home, tmp_path):
    """Before that, it prints its stacks when asked. For shells and other wrappers around a script
    see test_wrappers.py."""
    script = tmp_path / "long.py"
    script.write_text(LONG.format(scripts=str(SCRIPTS)))
    seen = start(PYTHON, str(script))
    wait_for(lambda: seen.of("step"))
    os.kill(seen.of("start")[0]["pid"], signal.SIGUSR2)
    wait_for(lambda: "most recent call first" in seen.log())
    assert seen.run.state().live
    seen.run.stop()
    state = wait_for(lambda: (s := seen.run.state()) and not s.live and s)
    assert state.state == "stopped"
    assert "saved" in seen.log()
    assert seen.events()[-1]["outcome"] == "stopped"
    begun = seen.of("start")[-1]
    assert not procs.alive(begun["pid"], begun["started"])
