"""Ranks that hang or seem to hang, and the stacks that they print on request."""

from __future__ import annotations

import re
import signal
import time

from ..conftest import wait_for
from .cases_processes import TRAIN, kill
from .kit import UNTIL_LET_GO, Box, case, steps


@case("SIGSTOP of a rank under train.hang_timeout",
      "failed; the rank that is suspended is named, and for how long")
def a_stopped_rank_is_a_hang(box: Box) -> None:
    run = box.go(TRAIN, train={"hang_timeout": 11.0})
    state = box.running(run)
    box.stepping(run, 2, rank=1)
    kill(state.processes[1].pid, signal.SIGSTOP)
    state = box.ended(run)
    assert state.state == "failed"
    assert (state.cause.rank, state.cause.type) == (1, "Hang")
    assert re.search(r"rank 1 is suspended for 1\d s\b", state.reason)


HANGING = """
start(); meet()
def stuck_here():
    while True: time.sleep(1)
step(7)
while not all(b'"step"' in events_path(run, r).read_bytes() for r in range(world)):
    time.sleep(0.01)
for n in range(1, 3):
    beat("data" if rank == 1 else "backward", 7 if rank == 1 else 8, since=5.0)
    time.sleep(0.1)
import threading
def beats():
    while True:
        beat("data" if rank == 1 else "backward", 7 if rank == 1 else 8, since=5.0)
        time.sleep(0.1)
threading.Thread(target=beats, daemon=True).start()
stuck_here()
"""


@case("One rank stands in its data, the others wait in backward (train.hang_timeout)",
      "failed; that rank and phase are named, its stack is in cause and log, the restart counts")
def a_hang_ends_with_evidence(box: Box) -> None:
    run = box.go(HANGING, train={"hang_timeout": 2.0})
    state = box.ended(run)
    assert state.state == "failed"
    assert (state.cause.rank, state.cause.type) == (1, "Hang")
    assert "rank 1 has stalled in data" in state.reason
    assert "rank 0 in backward" in state.reason
    assert "stuck_here" in state.cause.traceback
    for rank in (0, 1):
        assert "stuck_here" in run.log(rank).read_text()
    assert "stuck_here" in box.cli("show", run.id).stderr


@case("SIGSTOP of the supervisor for a while, under train.hang_timeout",
      "ranks go on; it catches up, takes nothing for a hang, and the run completes")
def the_supervisor_is_stopped_for_a_while(box: Box) -> None:
    run = box.go("start()" + UNTIL_LET_GO, train={"hang_timeout": 3.0})
    state = box.running(run)
    box.stepping(run, 2)
    kill(state.pid, signal.SIGSTOP)
    at = steps(run)
    time.sleep(4.0)
    wait_for(lambda: steps(run) > at + 20)
    kill(state.pid, signal.SIGCONT)
    box.let_go(run)
    state = box.ended(run)
    assert state.state == "completed", state
