"""Disks that are full, read-only, or flooded."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from gpu_engine.places.verbs import start
from gpu_engine.runs import folder as runs

from ..conftest import wait_for
from .disks import du, fill, kept_full, mounted
from .kit import UNTIL_LET_GO, Box, case, checkpoints, events, logs, steps, verified

SMALL = "72m"
"""A disk with just enough room for a run to begin: see `gpu_engine.runs.disk_room.LEAST`."""


def toy(box: Box, more: str) -> str:
    """The toy task, but it does more at each step."""
    text = (Path(__file__).parents[1] / "training" / "toy.py").read_text()
    path = box.tmp / "more.py"
    path.write_text(text.replace("        time.sleep(self.pause)\n",
                                 f"        time.sleep(self.pause)\n        {more}\n", 1))
    return f"{path}:Toy"


def stands_still(path: Path, seconds: float = 2.0) -> Callable[[], bool]:
    """Tells whether a file has not grown for so long: longer than a heartbeat is apart."""
    seen, since = -1, 0.0

    def told() -> bool:
        nonlocal seen, since
        if (size := path.stat().st_size) != seen:
            seen, since = size, time.monotonic()
        return time.monotonic() - since > seconds

    return told


@case("The disk fills up while a real rank trains and prints; there is room again before the end",
      "training goes on; a warning names the failed checkpoint, earlier ones load; events resume",
      root=True)
def a_full_disk_for_a_while(box: Box) -> None:
    with mounted(box.home, SMALL):
        run = start(box.prepared_toy(
            use=toy(box, "print('x' * 200)"), params={"pause": 0.02, "examples": 48_000},
            train={"steps": 100_000, "checkpoint_every": 10, "keep": 2}))
        box.stepping(run, 21)
        assert run.log(0).stat().st_size > 0
        with kept_full(box.home):
            before = checkpoints(run)
            wait_for(stands_still(run.events(0)))
            pid = run.state().processes[0].pid
            assert run.state().state == "running", logs(run)
        wait_for(lambda: any("could not be written for" in e["message"]
                             for e in events(run, 0, "warning")))
        seen = steps(run)
        wait_for(lambda: steps(run) > seen + 30)
        assert run.state().processes[0].pid == pid
        assert all(verified(p) for p in checkpoints(run)), before
        run.stop()
        assert box.ended(run).state == "stopped"
        assert verified(checkpoints(run)[-1])
        box.check()


@case("The disk fills up and stays full to the end of a real rank",
      "failed, as the final checkpoint could not be written; the disk holds that state",
      root=True)
def a_full_disk_to_the_end(box: Box) -> None:
    (held := box.tmp / "held").touch()  # it goes on to its end once the disk is full
    with mounted(box.home, SMALL):
        run = start(box.prepared_toy(
            use=toy(box, f"wait_for({str(held)!r} if self.calls == 50 else '')"),
            params={"pause": 0.02},  # no checkpoint is removed and makes room
            train={"steps": 100, "checkpoint_every": 10, "keep": 10}))
        wait_for(lambda: len(checkpoints(run)) > 1)
        fill(box.home)
        held.unlink()
        state = box.ended(run)
        wait_for(lambda: not run.supervised())
        state = run.state()
        assert state.state == "failed", (state, logs(run))
        assert checkpoints(run)
        assert all(verified(p) for p in checkpoints(run))
        box.check()
        (box.home / "ballast").unlink()


@case("The disk is full before the launch", "exit code 2 and the reason; no half-made run",
      root=True)
def a_full_disk_at_launch(box: Box) -> None:
    with mounted(box.home, "1m"):
        (box.home / "runs").mkdir(mode=0o700)
        fill(box.home)
        done = box.cli("run", "--devices", "cpu:0", "--", "true")
        assert done.returncode == 2, done
        assert f"no space left in {box.home}/runs: 0 B free" in done.stderr
        assert runs.all_runs() == []


@case("A rank writes to stdout as fast as it can, some 100 MB/s and more, until its log was cut "
      "five times", "its log stays within bounds, its last words are kept, and it completes")
def a_flood_of_output(box: Box) -> None:
    run = box.go(r"""
start(); step(1)
block = (b"x" * 99 + b"\n") * 10_000
cuts = total = before = 0
while cuts < 5:
    size = os.fstat(1).st_size
    cuts, before = cuts + (size < before), size
    if size < 400_000_000:  # a busy disk may keep the supervisor waiting
        total += os.write(1, block)
        beat()
    time.sleep(0.005)
tell("metric", step=1, written=total)
os.write(1, b"the last words\n")
beat()
time.sleep(1.5)
finish()
""", ranks=1, run={"log_mb": 2})
    assert box.ended(run).state == "completed"
    assert events(run, 0, "metric")[-1]["written"] > 10_000_000
    assert du(run.path) < 12 << 20
    shown = box.cli("logs", run.id).stdout
    assert "the last words" in shown
    assert "the output before this is in 00000.log.1" in shown
    kept = (run.path / "ranks" / "00000.log.1").read_bytes()
    assert kept.count(b"x" * 99 + b"\n") > 10_000


@case("A slow writer's log is cut again and again", "not one line of it is lost at a cut")
def cutting_loses_nothing_of_a_slow_log(box: Box) -> None:
    from gpu_engine.supervisor import logs as bounded

    path = box.tmp / "00000.log"
    seen: list[int] = []
    writer = box.popen("-u", "-c", (
        "import os, sys, time\n"
        "for n in range(3000):\n"
        "    os.write(1, b'%07d %s\\n' % (n, b'y' * 90))\n"
        "    time.sleep(0.0002)\n"), stdout=path.open("ab"))
    while writer.poll() is None:
        if bounded.bound(path, 100_000):
            seen += numbers(bounded.old(path))
        time.sleep(0.002)
    seen += numbers(path)
    assert len(seen) > 2950
    assert seen == sorted(set(seen))


def numbers(path) -> list[int]:
    return [int(line.split()[0]) for line in path.read_text().splitlines()
            if line[:1].isdigit() and len(line) == 98]


@case("Descriptors run out in a rank, and in the supervisor",
      "the rank's events and the run's end still get written; completed")
def no_descriptors_left(box: Box) -> None:
    import resource

    run = box.go("""
import resource
start(); step(1)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
while True:
    try: held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError: break
""" + UNTIL_LET_GO, ranks=1)
    state = box.running(run)
    box.stepping(run, 2)
    soft, hard = resource.prlimit(state.pid, resource.RLIMIT_NOFILE)
    used = len(os.listdir(f"/proc/{state.pid}/fd"))  # noqa: PTH208
    resource.prlimit(state.pid, resource.RLIMIT_NOFILE, (used, hard))
    time.sleep(0.5)
    resource.prlimit(state.pid, resource.RLIMIT_NOFILE, (soft, hard))
    box.let_go(run)
    assert box.ended(run).state == "completed", logs(run)
