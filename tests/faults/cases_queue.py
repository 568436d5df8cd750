"""Runs that wait for their turn, when their supervisors are killed or the machine goes down."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_engine.common import paths
from gpu_engine.common.files import json_inside, take_lock
from gpu_engine.devices import leases
from gpu_engine.queue import serve, wait
from gpu_engine.runs import folder as runs
from gpu_engine.runs import waiting
from gpu_engine.runs.create import lock_of
from gpu_engine.supervisor import __main__ as supervisor
from gpu_engine.supervisor import start

from ..conftest import wait_for
from ..queue.kit import hold, over, queue, reason, state
from .kit import Box, case

NOBODY = "waits, but nothing starts it: gpu-engine queue has it go on"


@case("SIGKILL to the supervisor of a waiting run",
      "it says that nothing starts it; the next look at the queue goes on with it, in its order")
def whoever_waits_is_killed(box: Box) -> None:
    box.patch.chdir(box.tmp)

    def engine(*words: str) -> str:
        done = box.cli(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def queued(*words: str) -> runs.Run:
        return runs.find(engine("run", "--queue", "--devices", "cpu:0", *words).split()[-1])

    with hold():
        first = queued("--priority", "2", "--", "sh", "-c", "echo ran")
        second = queued("--after", first.id, "--", "true")
        wait_for(lambda: "77aa" in reason(first))
        os.kill(first.state().pid or 0, signal.SIGKILL)
        wait_for(lambda: reason(first) == NOBODY)
        said = json.loads(engine("queue", "--json"))
        assert [one["id"] for one in said] == [first.id, second.id]
        wait_for(lambda: "77aa" in reason(first))
        assert first.id in engine("queue", "move", second.id, "first")
    over(first, second)
    assert (state(first), state(second)) == ("completed", "completed")
    assert first.output(0).read_text() == "ran\n"
    assert engine("queue").startswith("no run waits")


def _killed(run: runs.Run, module: Any, name: str, after: bool) -> None:
    """Supervise a waiting run in another process, which is killed when it calls this function, or
    when that has returned."""
    lock = lock_of(run.path)
    assert take_lock(lock)
    if (pid := os.fork()) == 0:
        real: Callable[..., object] = getattr(module, name)

        def fatal(*given: object, **more: object) -> None:
            if after:
                real(*given, **more)
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(module, name, fatal)
        supervisor.main(run.path, lock)
        os._exit(0)
    os.close(lock)
    os.waitpid(pid, 0)


@case("SIGKILL to the supervisor of a waiting run, between its turn and its first rank",
      "before it has left the line it waits on, and runs once; from then on it is lost, and is not "
      "begun a second time")
def killed_while_its_turn_comes(box: Box) -> None:
    box.patch.chdir(box.tmp)
    for module, name, after, begun in (
            (wait.leases, "wait", True, False), (wait.leases, "take", True, False),
            (wait, "prepare", False, False), (wait.environment, "note", False, False),
            (start, "blocked", False, False), (waiting, "leave", False, False),
            (waiting, "leave", True, True), (start, "start", True, True)):
        Path("ran").unlink(missing_ok=True)
        run = queue("sh", "-c", "echo ran >> ran; sleep 0.3; echo ended >> ran", begin=False)
        _killed(run, module, name, after)
        assert leases.holders(paths.leases_folder()) == {}, name
        point = (name, after, run.state())
        assert state(run) == ("lost" if begun else "queued"), point
        assert serve.ensure() == (not begun), point
        over(run)
        assert state(run) == ("lost" if begun else "completed"), point
        lines = Path("ran").read_text().split() if Path("ran").exists() else []
        assert lines == ([] if begun else ["ran", "ended"]) or (name == "start" and
                                                                lines == ["ran"]), point
        # One that has only left the line has begun no attempt.
        assert len(run.state().attempts) == ((name, after) != ("leave", True)), point
        assert serve.line() == []
        assert leases.waiting(paths.leases_folder()) == []


@case("twenty waiting runs become free to start at the same moment",
      "one after the other gets the device; none is started twice, and no two share it")
def many_decide_at_once(box: Box) -> None:
    box.patch.chdir(box.tmp)
    count = 20 if box.full else 6
    alone = "mkdir held || echo two >> ran; echo one >> ran; sleep 0.2; rmdir held"
    with hold():
        every = [queue("sh", "-c", alone) for _ in range(count)]
        for run in every:
            wait_for(lambda run=run: reason(run).startswith("waits for CPU 0"))
    over(*every)
    assert [state(run) for run in every] == ["completed"] * count
    assert Path("ran").read_text().split() == ["one"] * count
    started = [run.state().attempts[0].started for run in every]
    assert started == sorted(started), "in their order"


@case("the machine is restarted while twenty runs wait",
      "all of them wait on, in their order, as soon as somebody looks at the queue")
def twenty_wait_through_a_reboot(box: Box) -> None:
    box.patch.chdir(box.tmp)
    with hold():
        every = [queue("sh", "-c", f"echo {n} >> ran", begin=n == 0) for n in range(20)]
        wait_for(lambda: "77aa" in reason(every[0]))
        os.kill(every[0].state().pid or 0, signal.SIGKILL)
        wait_for(lambda: not every[0].supervised())
    # As the machine comes up: another boot, and no process.
    for run in every:
        recorded = runs.State.from_dict(json_inside(run.path, "state.json"))
        assert recorded is not None
        run.write_state(replace(recorded, boot="another boot"))
    for run in every:
        assert (state(run), reason(run)) == ("queued", NOBODY)
    assert [w.run for w in serve.line()] == every
    for run in every[3:]:
        run.stop()
        run.remove()
    assert serve.ensure() == 3
    assert serve.ensure() == 0
    over(*every[:3])
    assert Path("ran").read_text().split() == ["0", "1", "2"]
