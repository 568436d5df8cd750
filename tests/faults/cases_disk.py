"""Disks that are full, read-only, or flooded."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from gpu_engine.launching.launcher import start
from gpu_engine.runs import folder as runs

from ..conftest import wait_for
from .disks import du, fill, kept_full, mounted
from .kit import Box, case, checkpoints, events, logs, steps, verified

SMALL = "72m"
"""A disk with just enough room for a run to begin: see `gpu_engine.runs.disk_room.LEAST`."""


def chatty(box: Box) -> str:
    """The toy task, but it prints at each step, as many tasks do."""
    text = (Path(__file__).parents[1] / "training" / "toy.py").read_text()
    path = box.tmp / "chatty.py"
    path.write_text(text.replace("        time.sleep(self.pause)\n",
                                 "        time.sleep(self.pause)\n        print('x' * 200)\n", 1))
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
            use=chatty(box), params={"pause": 0.02, "examples": 48_000},
            train={"steps": 100_000, "checkpoint_every": 10, "keep": 2}))
        box.stepping(run, 21)
        assert run.log(0).stat().st_size > 0
        with kept_full(box.home):
            before = checkpoints(run)
            wait_for(stands_still(run.events(0)))
            pid = run.state().processes[0].pid
            assert run.state().state == "running", logs(run)
        wait_for(lambda: any("could not be written for" in e["message"]
                             for e in events(run, 0, "warning")), 20)
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
    with mounted(box.home, SMALL):
        run = box.toy(params={"pause": 0.02},  # no checkpoint is removed and makes room
                      train={"steps": 100, "checkpoint_every": 10, "keep": 10})
        box.stepping(run, 21)
        fill(box.home)
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


@case("A home that is read-only", "exit code 2 and the reason; what is there can still be shown",
      root=True)
def a_read_only_home(box: Box) -> None:
    with mounted(box.home, SMALL):
        run = box.go("start(); train(3)", ranks=1)
        box.ended(run)
        wait_for(lambda: not run.supervised())
        wait_for(lambda: subprocess.run(["mount", "-o", "remount,ro", str(box.home)],
                                        capture_output=True).returncode == 0)  # busy for a moment
        done = box.cli("run", "--devices", "cpu:0", "--", "true")
        assert done.returncode == 2, done
        assert "Read-only file system" in done.stderr
        for words in (("runs",), ("show", run.id), ("logs", run.id), ("devices",)):
            assert box.cli(*words).returncode == 0, words
        assert box.cli("resume", run.id).returncode == 2
        assert box.cli("runs", "rm", "--yes", run.id).returncode in (1, 2)
        box.check()


@case("The runs folder is a file, or another user's", "exit code 2 and what to do about it")
def an_unusable_runs_folder(box: Box) -> None:
    box.home.mkdir()
    (box.home / "runs").write_text("")
    done = box.cli("run", "--devices", "cpu:0", "--", "true")
    assert done.returncode == 2
    assert "GPU_PANEL_HOME" in done.stderr
    assert "not a directory" in box.cli("runs").stderr
    (box.home / "runs").unlink()
    if os.geteuid() == 0:
        (box.home / "runs").mkdir(mode=0o700)
        os.chown(box.home / "runs", 12345, 12345)
        done = box.cli("run", "--devices", "cpu:0", "--", "true")
        assert done.returncode == 2
        assert "another user" in done.stderr
        (box.home / "runs").rmdir()


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


@case("A full disk while a run restarts", "the restart is tried, and the end is on record",
      root=True)
def a_restart_on_a_full_disk(box: Box) -> None:
    with mounted(box.home, SMALL):
        run = box.go("start(); step(1)\nwhile os.statvfs(run).f_bavail: time.sleep(0.02)\n"
                     "if attempt == 1: os._exit(5)\ntrain(3)", ranks=1, train={"restarts": 1})
        box.running(run)
        box.stepping(run)
        fill(box.home)
        state = box.ended(run)
        wait_for(lambda: not run.supervised())
        state = run.state()
        assert state.attempt == 2
        assert "no space left" in state.attempts[0].reason  # of a rank that fell silent
        (box.home / "ballast").unlink()
        box.check()


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
train(120)
""", ranks=1)
    state = box.running(run)
    box.stepping(run, 2)
    soft, hard = resource.prlimit(state.pid, resource.RLIMIT_NOFILE)
    used = len(os.listdir(f"/proc/{state.pid}/fd"))  # noqa: PTH208
    resource.prlimit(state.pid, resource.RLIMIT_NOFILE, (used, hard))
    time.sleep(0.5)
    resource.prlimit(state.pid, resource.RLIMIT_NOFILE, (soft, hard))
    assert box.ended(run).state == "completed", logs(run)


@case("Descriptors run out in the supervisor for good, with ranks that must be ended",
      "the ranks are gone nonetheless")
def no_descriptors_for_good(box: Box) -> None:
    import resource

    run = box.go("start(); train()")
    state = box.running(run)
    used = len(os.listdir(f"/proc/{state.pid}/fd"))  # noqa: PTH208
    resource.prlimit(state.pid, resource.RLIMIT_NOFILE, (used, used))
    run.stop(now=True)
    assert box.ended(run).state in ("stopped", "lost")


@case("The command line is started with hardly any descriptors", "a message, not a traceback")
def few_descriptors_for_the_command_line(box: Box) -> None:
    import resource

    done = box.cli_process(
        "run", "--devices", "cpu:0", "--", "true",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12)))
    assert done.returncode in (0, 1, 2), done
