"""Processes that die, stop, hang, or won't end."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

from gpu_engine.common import procs
from gpu_engine.common.errors import UserError
from gpu_engine.runs import folder as runs

from ..conftest import wait_for
from .kit import SOON, UNTIL_LET_GO, Box, case, events, guard_of, logs, members, steps

TRAIN = "start(); train(every=20)"


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    os.kill(pid, number)


@case("SIGKILL to one of two ranks", "failed within 5 s, that rank and SIGKILL named")
def a_rank_is_killed(box: Box) -> None:
    run = box.go(TRAIN)
    state = box.running(run)
    kill(state.processes[1].pid)
    state = box.ended(run, SOON)
    assert (state.state, state.cause.rank) == ("failed", 1)
    assert "killed by SIGKILL" in state.reason
    shown = box.cli("show", run.id)
    assert "rank 1 failed first" in shown.stderr
    assert f"rank 1  pid {state.processes[1].pid}  killed by SIGKILL" in shown.stdout


@case("SIGKILL to the supervisor", "lost within 2 s, with last step and checkpoint; no rank lives")
def the_supervisor_is_killed(box: Box) -> None:
    run = box.go(TRAIN)
    state = box.running(run)
    wait_for(lambda: events(run, 0, "checkpoint"))
    kill(state.pid)
    lost = wait_for(lambda: (s := run.state()).state == "lost" and s)
    wait_for(lambda: not members(run), SOON)
    assert "its supervisor died" in lost.reason
    assert "last step " in run.state().reason
    assert "last checkpoint step-000000" in run.state().reason
    assert run.id in box.cli("runs").stdout


@case("SIGKILL to the guard behind the supervisor", "the run goes on and completes")
def the_guard_is_killed(box: Box) -> None:
    run = box.go("start()" + UNTIL_LET_GO)
    state = box.running(run)
    kill(guard_of(state))
    box.let_go(run)
    assert box.ended(run).state == "completed"


@case("SIGKILL to guard and supervisor at once", "lost; the ranks die by their parent-death signal")
def guard_and_supervisor_are_killed(box: Box) -> None:
    run = box.go(TRAIN)
    state = box.running(run)
    pids = [guard_of(state), state.pid]
    for pid in pids:
        kill(pid)
    wait_for(lambda: not members(run), SOON)
    assert run.state().state == "lost"


@case("SIGKILL to any of a run's processes at a random moment, in many rounds",
      "failed or lost, and nothing left, whatever it hit")
def anything_is_killed_at_random(box: Box) -> None:
    chance = random.Random(os.environ.get("GPU_PANEL_SEED", time.time_ns()))
    for _ in range(40 if box.full else 6):
        run = box.go(TRAIN, train={"restarts": chance.choice([0, 0, 1])})
        wait_for(lambda run=run: run.state().pid or not run.state().live)
        time.sleep(chance.random() ** 2 * 1.0)
        state = run.state()
        targets = [state.pid, *(p.pid for p in state.processes)]
        victim = chance.choice(targets)
        if victim is not None and procs.start_ticks(victim):
            kill(victim)
        time.sleep(chance.random() * 0.3)
        if run.state().live:
            run_stop(run)
        assert box.ended(run).state in ("failed", "lost", "stopped"), logs(run)


def run_stop(run: runs.Run) -> None:
    try:
        run.stop(now=True)
    except (UserError, ProcessLookupError):
        pass  # it has just ended


@case("SIGKILL to guard and supervisor at once, above a script that left a daemon behind",
      "lost; show names what still runs, rm refuses, stop ends it")
def a_daemon_below_nobody(box: Box) -> None:
    run = box.script(DAEMON, ranks=1)
    daemon, state = daemon_of(run), run.state()
    kill(guard_of(state))
    kill(state.pid)
    wait_for(lambda: members(run) == [daemon], SOON)
    assert f"processes of it still run: pid {daemon}" in box.cli("show", run.id).stdout
    assert box.cli("runs", "rm", "--yes", run.id).returncode != 0
    box.cli("stop", run.id)
    assert procs.start_ticks(daemon) is None
    assert run.state().state == "lost"
    assert "it is lost" in box.cli("stop", run.id).stderr


DAEMON = """
import os, subprocess, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    open(os.environ["GPU_PANEL_RUN"] + "/daemon", "w").write(str(os.getpid()))
    time.sleep(600)
os.wait()
time.sleep(600)
"""


def daemon_of(run: runs.Run) -> int:
    """The pid in the file, once it is there."""
    daemon = int(wait_for(lambda: (p := run.path / "daemon").exists() and p.read_text()))
    assert procs.start_ticks(daemon)
    return daemon


SLEEPER = """
import os, time
path = os.environ["GPU_PANEL_RUN"] + "/here-" + os.environ["RANK"]
open(path, "w").write(str(os.getpid()))
time.sleep(600)
"""


TRAINER = f"""
import sys
sys.path.append({str(Path(__file__).parents[1] / "scripts")!r})
import quick, torch
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
(weight * 2).sum().backward()
optimizer.step()
""" + SLEEPER


def torchrun_ranks(box: Box, script: str = SLEEPER) -> tuple[runs.Run, list[int]]:
    """Two ranks of a script under torchrun, which only sleep."""
    run = box.script(script, parallel={"mode": "ddp", "launcher": "torchrun"})
    wait_for(lambda: all((run.path / f"here-{r}").exists() and
                         (run.path / f"here-{r}").read_text() for r in (0, 1)), 60)
    return run, [int((run.path / f"here-{r}").read_text()) for r in (0, 1)]


@case("SIGKILL to torchrun's agent, above a person's own script",
      "no rank trains on as an orphan; the launcher is named, not a rank")
def torchruns_agent_is_killed(box: Box) -> None:
    run, pids = torchrun_ranks(box)
    kill(run.state().processes[0].pid)
    state = box.ended(run, SOON)
    assert not [p for p in pids if procs.start_ticks(p)]
    assert state.state == "failed"
    assert "the ranks' launcher" in state.reason
    assert "SIGKILL" in state.reason


@case("SIGKILL to guard and supervisor at once, above torchrun and a person's own script",
      "the orphaned ranks, which train on, end themselves within 5 s")
def ranks_below_nobody(box: Box) -> None:
    run, pids = torchrun_ranks(box, TRAINER)
    state = run.state()
    kill(guard_of(state))
    kill(state.pid)
    wait_for(lambda: not [p for p in pids if procs.start_ticks(p)], SOON)
    assert run.state().state == "lost"


@case("SIGKILL to the supervisor of a real rank with DataLoader workers",
      "rank and workers are gone, the checkpoint before it loads, resume completes", always=False)
def loader_workers_of_a_killed_supervisor(box: Box) -> None:
    run = box.toy(params={"pause": 0.05}, train={"workers": 2, "steps": 100000,
                                                 "checkpoint_every": 5})
    box.stepping(run, 12)
    kill(run.state().pid)
    wait_for(lambda: not members(run), SOON)
    assert "last checkpoint" in run.state().reason
    at = steps(run) + 5
    assert box.cli("resume", run.id, "--set", f"train.steps={at}").returncode == 0
    assert [e["attempt"] for e in events(run, 0, "start")] == [1, 2]


@case("SIGSTOP of a rank, then a stop", "the others save, the stopped one is ended after the grace")
def a_stopped_rank_can_be_ended(box: Box) -> None:
    run = box.go(TRAIN, run={"grace": 1.0})
    state = box.running(run)
    kill(state.processes[0].pid, signal.SIGSTOP)
    run.stop()
    state = box.ended(run, SOON)
    assert state.state == "stopped"
    assert "did not stop in time" in state.reason


@case("A stop right behind a launch, at many moments", "stopped, and nothing of it is left")
def stopped_while_starting(box: Box) -> None:
    for round_ in range(20 if box.full else 6):
        run = box.go(TRAIN)
        time.sleep(round_ * 0.03)
        run.stop(now=bool(round_ % 2))
        state = box.ended(run)
        assert state.state == "stopped", (round_, state, logs(run))
