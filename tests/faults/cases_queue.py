"""Runs that wait for their turn, when whoever starts them is killed or the machine goes down."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace
from pathlib import Path

from gpu_engine.common.files import read_json, write_json
from gpu_engine.common.paths import queue_folder
from gpu_engine.queue import change, waiter
from gpu_engine.queue.waiter import Waiter
from gpu_engine.runs import folder as runs
from gpu_engine.runs import waiting

from ..conftest import wait_for
from ..queue.kit import hold, queue, state, turn_until
from .kit import Box, case


@case("SIGKILL to the process that starts waiting runs",
      "they say that nothing starts them; the next look at the queue goes on with it, in order")
def whoever_waits_is_killed(box: Box) -> None:
    box.patch.chdir(box.tmp)
    box.patch.setattr(waiting, "_BEGINNING", 0.0)
    folder = queue_folder()

    def engine(*words: str) -> str:
        done = box.cli(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def queued(*words: str) -> runs.Run:
        return runs.find(engine("run", "--queue", "--devices", "cpu:0", *words).split()[-1])

    with hold():
        first = queued("--priority", "2", "--", "sh", "-c", "echo ran")
        wait_for(lambda: waiter.running(folder))  # else the next would start a second one
        second = queued("--free-for", "0.5", "--after", first.id, "--", "true")
        board = wait_for(lambda: waiting.read_board(folder, socket.gethostname()))
        wait_for(lambda: "77aa" in (first.state().reason or ""))
        os.kill(board.pid, 9)
        wait_for(lambda: not waiter.running(folder))
        wait_for(lambda: "the queue does not run" in (first.state().reason or ""))
        said = json.loads(engine("queue", "--json"))
        assert [one["id"] for one in said] == [first.id, second.id]
        wait_for(lambda: waiter.running(folder))
        assert first.id in engine("queue", "move", second.id, "first")
    wait_for(lambda: state(second) == "completed")
    assert first.output(0).read_text() == "ran\n"
    wait_for(lambda: not waiter.running(folder))
    assert engine("queue").startswith("no run waits")


@case("the machine is restarted while twenty runs wait",
      "all of them wait on, in their order, as soon as somebody looks at the queue")
def twenty_wait_through_a_reboot(box: Box) -> None:
    box.patch.chdir(box.tmp)
    box.patch.setattr(waiting, "_BEGINNING", 0.0)
    before = Waiter(queue_folder())
    with hold():
        all_of_them = [queue("sh", "-c", f"echo {n} >> ran") for n in range(20)]
        turn_until(before, lambda: "77aa" in (all_of_them[0].state().reason or ""))
    # As the machine comes up: another boot, no process, a board of the last boot.
    for run in all_of_them:
        recorded = runs.State.from_dict(read_json(run.path / "state.json"))
        assert recorded is not None
        run.write_state(replace(recorded, boot="another boot"))
    board = waiting.board_path(queue_folder(), before.host)
    told = read_json(board)
    assert isinstance(told, dict)
    write_json(board, told | {"boot": "another boot"})
    (waiting.line_folder(queue_folder()) / all_of_them[5].id).unlink()  # lost with the power
    waiting._seen.clear()
    for run in all_of_them:
        assert run.state().state == "queued"
        assert "the queue does not run: gpu-engine queue starts it" in (run.state().reason or "")
    again = Waiter(queue_folder())
    again._enqueue_started_here()
    assert [w.run for w in change.line()] == all_of_them
    for run in all_of_them[2:]:
        run.stop()
        run.remove()
    turn_until(again, lambda: state(all_of_them[1]) == "completed")
    assert Path("ran").read_text().split() == ["0", "1"]
