"""Saves that take longer than the time that is left."""

from __future__ import annotations

from ..conftest import wait_for
from .kit import Box, case, checkpoints, events

SAVES_SLOWLY = """
start(); step(1); beat()
since, n = time.time(), 0
while rank == 0 and not ({until}):
    if asked or n == 0:  # it has begun before it is asked to stop
        n += 1
        tell("phase", phase="checkpoint", since=since, step=1, done={done})
    time.sleep(0.1)
while not asked: time.sleep(0.01)
if rank == 0:
    save(1)
finish("stopped", 1)
"""


@case("A stop, and a checkpoint that takes longer than run.grace",
      "it may finish as long as the file grows, and show says so; the checkpoint is there")
def a_save_beyond_the_grace(box: Box) -> None:
    # A rank also takes a moment to exit, as torch takes its modules apart.
    slow = SAVES_SLOWLY.format(done="n << 20", until=f"os.path.exists({str(box.tmp / 'seen')!r})"
                               ).replace("finish(", "time.sleep(1.5)\nfinish(")
    run = box.go(slow, run={"grace": 0.5})
    wait_for(lambda: len(events(run, 0, "phase")) > 1 and events(run, 1, "phase"))
    run.stop()
    said = wait_for(lambda: (s := run.state()).reason and s)
    assert said.state == "stopping"
    assert "rank 0 is still writing a checkpoint" in said.reason
    assert "run.grace = 0.5 s" in box.cli("show", run.id).stderr
    (box.tmp / "seen").touch()
    state = box.ended(run)
    assert (state.state, [p.exit for p in state.processes]) == ("stopped", [0, 0])
    assert "longer than run.grace" in state.reason
    assert [p.name for p in checkpoints(run)] == ["step-00000001"]


@case("A stop, and a script that takes longer than run.grace to save",
      "it may finish as long as it writes")
def a_scripts_save_beyond_the_grace(box: Box) -> None:
    target = box.tmp / "weights"
    run = box.script(
        "import os, signal, sys, time\n"
        "def save(*_):\n"
        f"    with open({str(target)!r}, 'wb', 0) as file:\n"
        "        for _ in range(35):\n"
        "            file.write(os.urandom(1 << 20))\n"
        "            time.sleep(0.1)\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGINT, save)\nprint('up', flush=True)\ntime.sleep(100)\n",
        ranks=1, run={"grace": 2.5})
    wait_for(lambda: run.log(0).exists() and b"up" in run.log(0).read_bytes())
    run.stop()
    state = box.ended(run)
    assert state.state == "stopped"
    assert [p.exit for p in state.processes] == [0]
    assert target.stat().st_size == 35 << 20
